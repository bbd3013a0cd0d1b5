// SPDX-License-Identifier: MIT
// The layout of buffers, packets and messages is that of ROCm's clr (rocclr/device/devhostcall.hpp, devhcmessages.cpp)
// and device libraries (ockl/src/hostcall_impl.cl), which have to agree. A wave takes a packet from the stack of free
// ones, fills it, pushes it to the stack of ready ones, adds 1 to the doorbell's value, and sends the interrupt that
// the doorbell names; it goes on when the packet is no longer marked as ready.
//
// A buffer for printing is two words, how many bytes of it are used and how many there are, and then the messages: each
// a word (bytes of the message << 2, 2: the format is a hash of one in the metadata, 1: for stderr), the format, the
// arguments (clang's AMDGPUEmitPrintf.cpp).
#include "run/hostcall.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "load/loader.h"
#include "names.h"
#include "run/device_heap.h"
#include "run/format.h"
#include "run/launch_state.h"

namespace sim {
namespace {

constexpr u32 kPackets = 2;                    // per wave, which fills one at a time; a power of two beyond 1
constexpr u32 kCells = 8;                      // 64-bit words that a lane sends
constexpr u64 kMessageCells = 1 << 17, kMessages = 4096;         // per wave: more is no printf
constexpr u64 kAlign = 64;
constexpr u64 kPrintedBytes = 4 << 20;         // a wave's buffer for printing; pages are touched on first use
constexpr std::string_view kHostcall = "hidden_hostcall_buffer", kPrinted = "hidden_printf_buffer";

struct Packet {
  u64 next, active;                            // the next one of its stack; lanes that send something
  u32 service, control;                        // bit 0 of control: ready
};

struct Signal {                                // amd_signal_t, as far as a doorbell needs it
  i64 kind, value;
  u64 mailbox;                                 // not null: whoever rings writes the event there, and interrupts
  u32 event, unused[9];
};

struct Buffer {
  u64 packets, cells, doorbell, free, ready, mask, device, unused;
  Signal signal;
  u64 mailbox, unused_too[7];
  Packet packet[kPackets];
  alignas(kAlign) u64 cell[kPackets][kLanes][kCells];
};
static_assert(sizeof(Packet) == 24 && sizeof(Signal) == 64 && sizeof(Buffer) % kAlign == 0);

enum Service : u32 { kFunctionCall = 1, kPrintf = 2, kDeviceMemory = 3, kSanitizer = 4 };

// The first word of a printf packet: flags, how many words follow, which message.
constexpr u64 kBegins = 1, kEnds = 2;
u64 cells_of(u64 word) { return word >> 5 & 7; }
u64 message_of(u64 word) { return word >> 8; }

// The message with its format in place of the hash of one.
std::vector<u64> with_format(const std::map<u64, std::string>& formats, std::vector<u64> cells) {
  const auto known = formats.find(cells[0]);
  const std::string format = known == formats.end() ? "(printf with a format that the metadata lack)\n" : known->second;
  std::vector<u64> whole(format.size() / 8 + 1);
  std::memcpy(whole.data(), format.data(), format.size());
  whole.insert(whole.end(), cells.begin() + 1, cells.end());
  return whole;
}

u64 rounded(u64 bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

u64 num_waves(const Launch& l) { return (u64{l.block[0]} * l.block[1] * l.block[2] + kLanes - 1) / kLanes; }

bool wants(const Kernel& kernel, std::string_view kind) {
  return std::any_of(kernel.hidden.begin(), kernel.hidden.end(), [&](const HiddenArg& h) { return h.kind == kind; });
}

// Serves the device library's allocator: memory of so many bytes, or the release of that at an address.
u64 device_memory(const u64* cells) {
  if (!cells[0]) return device_heap().allocate(cells[1]);
  if (device_heap().release(cells[0])) return 0;
  throw Fault("hostcall: free in a kernel, of memory that malloc in kernels has not given");
}

[[noreturn]] void refuse(u32 service) {
  switch (service) {
    case kFunctionCall: throw Fault("hostcall: calls of host functions are not supported");
    case kSanitizer: throw Fault("hostcall: the device's address sanitizer is not supported; use the checker `bounds`");
    default: throw Fault("hostcall: there is no service " + std::to_string(service));
  }
}

}  // namespace

bool HostCalls::needed_by(const Kernel& kernel) {
  return wants(kernel, kHostcall) || wants(kernel, kPrinted);
}

HostCalls::HostCalls(const Launch& launch, u64 resident_workgroups)
    : launch_(launch), kernarg_stride_(rounded(launch.kernel->kernarg_bytes + kGuardBytes)),
      printed_stride_(wants(*launch.kernel, kPrinted) ? kPrintedBytes : 0) {
  if (printed_stride_ && launch.code->has_opencl_formats) {
    throw Fault("OpenCL's printf is not supported; HIP's is");
  }
  const u64 workgroups = std::min(resident_workgroups, u64{launch.grid[0]} * launch.grid[1] * launch.grid[2]);
  waves_ = workgroups * num_waves(launch);
  bytes_ = (kernarg_stride_ + sizeof(Buffer) + printed_stride_) * waves_;
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Fault("out of memory for the buffers of device printf");
  memory_ = static_cast<u8*>(memory);
  channels_.resize(waves_);
  for (u64 i = workgroups; i > 0; --i) free_.push_back(static_cast<u32>(i - 1));
}

HostCalls::~HostCalls() { munmap(memory_, bytes_); }

void HostCalls::begin(Workgroup& group) {
  {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) throw Fault("more workgroups print at a time than are resident");
    group.host_place = free_.back();
    free_.pop_back();
  }
  for (Wave& w : group.waves) {
    const u64 number = group.host_place * num_waves(launch_) + static_cast<u64>(w.id);
    reset(channels_[number], number);
    w.host = &channels_[number];
  }
}

void HostCalls::end(Workgroup& group) {
  if (group.waves.empty() || !group.waves[0].host) return;             // it has not begun
  for (Wave& w : group.waves) {
    if (w.host->printed) read_printed(w);
    w.host = nullptr;
  }
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(group.host_place);
  }
  output.ended(group.number());
}

void HostCalls::reset(HostChannel& channel, u64 number) {
  channel.kernarg = memory_ + kernarg_stride_ * number;
  channel.buffer = memory_ + kernarg_stride_ * waves_ + sizeof(Buffer) * number;
  channel.messages.clear();
  channel.error.clear();
  auto* b = reinterpret_cast<Buffer*>(channel.buffer);
  const auto address = [](const void* p) { return reinterpret_cast<u64>(p); };
  std::memset(channel.buffer, 0, offsetof(Buffer, cell));
  b->packets = address(b->packet);
  b->cells = address(b->cell);
  b->doorbell = address(&b->signal);
  b->mask = kPackets - 1;
  // A pointer is a packet's place, and above it a count that changes with each use, so that 0 is no pointer.
  b->packet[1].next = kPackets;
  b->free = 1;
  b->signal.mailbox = address(&b->mailbox);
  b->signal.event = 1;
  std::memcpy(channel.kernarg, launch_.kernarg, launch_.kernel->kernarg_bytes + kGuardBytes);
  if (printed_stride_) {
    channel.printed = memory_ + (kernarg_stride_ + sizeof(Buffer)) * waves_ + printed_stride_ * number;
    const u32 sizes[] = {0, static_cast<u32>(printed_stride_)};
    std::memcpy(channel.printed, sizes, sizeof sizes);
  }
  for (const HiddenArg& h : launch_.kernel->hidden) {
    u8* const* const value = h.kind == kHostcall ? &channel.buffer : h.kind == kPrinted ? &channel.printed : nullptr;
    if (value) std::memcpy(channel.kernarg + h.offset, value, std::min(h.size, 8u));
  }
}

// The kernel may have written anything into its buffer: nothing read from it is used without a bound.
void HostCalls::serve(Wave& w) {
  auto* b = reinterpret_cast<Buffer*>(w.host->buffer);
  u64 pointer = std::atomic_ref(b->ready).exchange(0);
  std::string text[2];                         // for stdout, for stderr
  for (u32 n = 0; pointer && n < kPackets; ++n) {
    Packet& packet = b->packet[pointer % kPackets];
    const bool is_memory = packet.service == kDeviceMemory;
    if (packet.service != kPrintf && !is_memory) refuse(packet.service);
    for (u64 left = packet.active; left; left &= left - 1) {
      u64* cells = b->cell[pointer % kPackets][std::countr_zero(left)];
      cells[0] = is_memory ? device_memory(cells) : answer(*w.host, cells, text);
    }
    pointer = packet.next;
    std::atomic_ref(packet.control).store(packet.control & ~1u, std::memory_order_release);
  }
  if (!text[1].empty()) w.host->error = text[1];
  for (const bool is_error : {false, true}) output.add(w.group->number(), is_error, std::move(text[is_error]));
}

// A lane's part of a message; the result is what printf returns, or the first word for its next part.
u64 HostCalls::answer(HostChannel& channel, u64* cells, std::string (&text)[2]) {
  auto& messages = channel.messages;
  u64 word = cells[0];
  if (word & kBegins) {
    const auto unused = std::find_if(messages.begin(), messages.end(), [](const auto& m) { return m.empty(); });
    const u64 number = static_cast<u64>(unused - messages.begin());
    if (number >= kMessages) throw Fault("hostcall: a wave has begun 4096 messages and ended none of them");
    if (unused == messages.end()) messages.emplace_back();
    word = (word & 0xff & ~kBegins) | number << 8;
  }
  const u64 number = message_of(word);
  const bool is_known = number < messages.size() && (cells[0] & kBegins || !messages[number].empty());
  if (!is_known) throw Fault("hostcall: a part of a message that has not begun");
  std::vector<u64>& message = messages[number];
  message.insert(message.end(), cells + 1, cells + 1 + cells_of(word));
  if (message.size() > kMessageCells) throw Fault("printf of more than 1 MiB in one call");
  if (!(word & kEnds)) return word;
  if (message.empty()) return 0;
  const bool is_error = message[0] & 1;
  const std::string formatted = format_message(std::span(message).subspan(1));
  message.clear();
  text[is_error] += formatted;
  return formatted.size();
}

// Shows what an ended wave printed, up to a message that the kernel has damaged.
void HostCalls::read_printed(const Wave& w) {
  constexpr u32 kHead = 2 * sizeof(u32), kLargest = 1 << 16;           // a message beyond the latter is not foreseen
  u32 used = 0;
  std::memcpy(&used, w.host->printed, sizeof used);
  const u64 end = std::min<u64>(u64{kHead} + used, printed_stride_);
  const u64 group = w.group->number();
  for (u64 at = kHead; at + sizeof(u32) <= end;) {
    u32 word = 0;
    std::memcpy(&word, w.host->printed + at, sizeof word);
    const u64 bytes = word >> 2;
    if (bytes < sizeof word || bytes > end - at) break;
    std::vector<u64> cells((bytes - sizeof word) / 8);
    std::memcpy(cells.data(), w.host->printed + at + sizeof word, cells.size() * 8);
    at += bytes;
    if (word & 2 && !cells.empty()) cells = with_format(launch_.code->formats, std::move(cells));
    std::string text;
    try {
      text = format_message(cells);
    } catch (const Fault& fault) {
      text = std::string(fault.what()) + "\n";
    }
    output.add(group, word & 1, std::move(text));
  }
  if (end + kLargest > printed_stride_) {
    output.add(group, true, "kernel " + short_name(launch_.kernel->name) + ": a wave has filled its buffer of " +
               std::to_string(printed_stride_) + " bytes for printf; what it printed later is lost. Without "
               "-mprintf-kind=buffered nothing is lost\n");
  }
  if (used > kLargest) madvise(w.host->printed, printed_stride_, MADV_DONTNEED);
}

}  // namespace sim
