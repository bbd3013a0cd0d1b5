// SPDX-License-Identifier: MIT
// printf, assert and abort of device code. clang makes calls of the three __ockl_printf functions out of each printf.
// These here speak to the host as those of ROCm's device library do; csrc/sim/run/hostcall.cpp is the simulator's side.
// The kernel finds the buffer of packets in its hidden arguments, code object 5 or later. hipRTC has a copy of this
// file before each program, so that #pragma once does not suffice.
#pragma once
#if defined(__HIP__) && !defined(AITER_LIKE_HOSTCALL)
#define AITER_LIKE_HOSTCALL

namespace aiter_like_hostcall {

using Word = unsigned long;

struct Packet {
  Word next, active;                             // the next one of its stack; the lanes that send something
  unsigned service, control;                     // bit 0 of control: the host has not answered
};

struct Buffer {
  Packet* packets;
  Word (*cells)[64][8];                          // [packet][lane]: eight words
  char* doorbell;
  Word free, ready, mask;                        // stacks of packets; mask: a pointer's bits that are a packet's place
};

__device__ inline unsigned lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }

__device__ inline Word first(Word x) {           // the first active lane's
  const unsigned low = __builtin_amdgcn_readfirstlane(static_cast<unsigned>(x));
  const unsigned high = __builtin_amdgcn_readfirstlane(static_cast<unsigned>(x >> 32));
  return static_cast<Word>(high) << 32 | low;
}

template <class T>
__device__ inline T load(const T& place, int order) {
  return __hip_atomic_load(&place, order, __HIP_MEMORY_SCOPE_SYSTEM);
}

__device__ inline Word pop(Buffer& b) {
  for (Word top = load(b.free, __ATOMIC_ACQUIRE);; __builtin_amdgcn_s_sleep(1)) {
    const Word next = load(b.packets[top & b.mask].next, __ATOMIC_RELAXED);
    if (__hip_atomic_compare_exchange_strong(&b.free, &top, next, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED,
                                             __HIP_MEMORY_SCOPE_SYSTEM)) {
      return top;
    }
  }
}

__device__ inline void push(Buffer& b, Word& stack, Word pointer) {
  for (Word top = load(stack, __ATOMIC_RELAXED);; __builtin_amdgcn_s_sleep(1)) {
    b.packets[pointer & b.mask].next = top;
    if (__hip_atomic_compare_exchange_strong(&stack, &top, pointer, __ATOMIC_RELEASE, __ATOMIC_RELAXED,
                                             __HIP_MEMORY_SCOPE_SYSTEM)) {
      return;
    }
  }
}

// Adds 1 to the signal's value, and interrupts the host with its event's number.
__device__ inline void ring(char* signal) {
  __hip_atomic_fetch_add(reinterpret_cast<Word*>(signal + 8), 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
  Word* const mailbox = *reinterpret_cast<Word**>(signal + 16);
  if (!mailbox) return;
  const unsigned event = *reinterpret_cast<unsigned*>(signal + 24);
  __hip_atomic_store(mailbox, static_cast<Word>(event), __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
  constexpr int kInterrupt = 1;
  __builtin_amdgcn_s_sendmsg(kInterrupt, __builtin_amdgcn_readfirstlane(event & 0xffffff));
}

// Asks the host for something with eight words of each active lane; the result is the first word of its answer.
__device__ __attribute__((noinline, weak)) Word ask(unsigned service, Word w0, Word w1, Word w2, Word w3, Word w4,
                                                    Word w5, Word w6, Word w7) {
  constexpr int kHostcallBuffer = 80;            // among the hidden arguments
  const auto* hidden = (const char __attribute__((address_space(4)))*)__builtin_amdgcn_implicitarg_ptr();
  Buffer& b = **(Buffer* const __attribute__((address_space(4)))*)(hidden + kHostcallBuffer);
  const unsigned me = lane();
  const bool leads = me == __builtin_amdgcn_readfirstlane(me);
  Word pointer = 0;
  if (leads) pointer = pop(b);
  pointer = first(pointer);
  Packet& packet = b.packets[pointer & b.mask];
  const Word active = __builtin_amdgcn_ballot_w64(true);
  if (leads) {
    packet.active = active;
    packet.service = service;
    packet.control = 1;
  }
  Word* const cells = b.cells[pointer & b.mask][me];
  cells[0] = w0;
  cells[1] = w1;
  cells[2] = w2;
  cells[3] = w3;
  cells[4] = w4;
  cells[5] = w5;
  cells[6] = w6;
  cells[7] = w7;
  if (leads) {
    push(b, b.ready, pointer);
    ring(b.doorbell);
  }
  for (;;) {
    unsigned waits = 1;
    if (leads) waits = load(packet.control, __ATOMIC_ACQUIRE) & 1;
    if (!__builtin_amdgcn_readfirstlane(waits)) break;
    __builtin_amdgcn_s_sleep(1);
  }
  const Word answer = cells[0];
  if (leads) {
    const Word again = pointer + b.mask + 1;     // another pointer to the same packet; 0 is none
    push(b, b.free, again ? again : b.mask + 1);
  }
  return answer;
}

constexpr unsigned kPrintf = 2;
constexpr Word kBegins = 1, kEnds = 2, kOneWord = 1 << 5, kCountOfWords = 7 << 5;

__device__ inline Word begin(Word is_error) { return ask(kPrintf, kBegins | kOneWord, is_error, 0, 0, 0, 0, 0, 0); }

}  // namespace aiter_like_hostcall

extern "C" {

__device__ __attribute__((weak)) unsigned long __ockl_printf_begin(unsigned long) {
  return aiter_like_hostcall::begin(0);
}

__device__ __attribute__((weak)) unsigned long __ockl_fprintf_stderr_begin() { return aiter_like_hostcall::begin(1); }

__device__ __attribute__((weak)) unsigned long __ockl_printf_append_args(
    unsigned long message, unsigned count, unsigned long a, unsigned long b, unsigned long c, unsigned long d,
    unsigned long e, unsigned long f, unsigned long g, unsigned is_last) {
  using namespace aiter_like_hostcall;
  const Word word = (message & ~(kCountOfWords | kEnds)) | static_cast<Word>(count) << 5 | (is_last ? kEnds : 0);
  return ask(kPrintf, word, a, b, c, d, e, f, g);
}

// Seven words at a time; the bytes after the last are zeros. Lanes whose string has ended wait for the others.
__device__ __attribute__((weak, noinline)) unsigned long __ockl_printf_append_string_n(
    unsigned long message, const char* text, unsigned long length, unsigned is_last) {
  using namespace aiter_like_hostcall;
  const unsigned long total = text && length ? length : 1;                   // a null pointer counts as an empty string
  for (unsigned long done = 0; done < total; done += 56) {
    Word words[7] = {};
    for (unsigned long at = done; text && at < length && at < done + 56; ++at) {
      words[(at - done) / 8] |= static_cast<Word>(static_cast<unsigned char>(text[at])) << (at - done) % 8 * 8;
    }
    const unsigned long left = total - done;
    const unsigned count = left > 56 ? 7 : static_cast<unsigned>((left + 7) / 8);
    message = __ockl_printf_append_args(message, count, words[0], words[1], words[2], words[3], words[4], words[5],
                                        words[6], is_last && left <= 56);
  }
  return message;
}

// Called by clang's -mprintf-kind=buffered: room for a message in the buffer, null when that is full.
__device__ __attribute__((weak)) __attribute__((address_space(1))) char* __printf_alloc(unsigned bytes) {
  constexpr int kPrintfBuffer = 72;              // among the hidden arguments
  using Global = __attribute__((address_space(1))) char;
  const auto* hidden = (const char __attribute__((address_space(4)))*)__builtin_amdgcn_implicitarg_ptr();
  Global* buffer = *(Global* const __attribute__((address_space(4)))*)(hidden + kPrintfBuffer);
  auto* const sizes = (__attribute__((address_space(1))) unsigned*)buffer;   // used, of how many
  unsigned used = __hip_atomic_load(sizes, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  do {
    if (used + bytes + 8 > sizes[1]) return nullptr;
  } while (!__hip_atomic_compare_exchange_strong(sizes, &used, used + bytes, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                                 __HIP_MEMORY_SCOPE_AGENT));
  return buffer + 8 + used;
}

__device__ int printf(const char* format, ...);

__device__ inline __attribute__((weak, noreturn)) void abort() { __builtin_trap(); }

// The macro assert of <cassert> calls this.
__device__ __attribute__((weak, noinline, noreturn)) void __assert_fail(const char* condition, const char* file,
                                                                        unsigned line, const char* function) {
  const auto append = [](unsigned long message, const char* text, unsigned is_last) {
    unsigned long length = 1;
    while (text[length - 1]) ++length;
    return __ockl_printf_append_string_n(message, text, length, is_last);
  };
  unsigned long message = __ockl_fprintf_stderr_begin();
  message = append(message, "%s:%u: %s: Device-side assertion `%s' failed.\n", 0);
  message = append(message, file, 0);
  message = __ockl_printf_append_args(message, 1, line, 0, 0, 0, 0, 0, 0, 0);
  message = append(message, function, 0);
  append(message, condition, 1);
  __builtin_trap();
}
}

#if defined(__HIPCC_RTC__) && !defined(assert)
#if defined(NDEBUG)
#define assert(condition) static_cast<void>(0)
#else
#define assert(condition) \
  ((condition) ? static_cast<void>(0) : __assert_fail(#condition, __FILE__, __LINE__, __PRETTY_FUNCTION__))
#endif
#endif
#endif
