// SPDX-License-Identifier: MIT
// The C interface that aiter_like/sim.py uses besides HIP's own: settings, argument ranges, reports, counters.
// Strings returned are JSON, allocated here and freed by aiter_like_sim_free.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "hip/defer.h"
#include "json.h"
#include "load/decode.h"
#include "report.h"
#include "run/counters.h"
#include "run/memory.h"
#include "run/output.h"
#include "run/observers.h"
#include "settings.h"

namespace sim::hip {
namespace {

using json::give, json::List, json::Object, json::quoted;

// What `describe` tells of a code object; null with hipGetErrorString's text when it does not load.
char* given_of(const void* image, u64 bytes, auto describe) {
  try {
    if (bytes == 0) throw Fault("the code object is empty");
    return give(describe(*load_code(image, bytes, "code object")));
  } catch (const std::exception& error) {
    describe_error(kInvalidImage, error.what());
    return nullptr;
  }
}

bool known(u64 base, u64 bytes) {
  const std::optional<Range> range = memory().find(base);
  return range && !range->freed && base + bytes <= range->base + range->bytes;
}

std::string json_of(const Report& r) {
  List group;
  for (u32 at : r.workgroup) group.raw(std::to_string(at));
  Object o;
  o.add("check", r.check).add("message", r.message).add("kernel", r.kernel).raw("workgroup", group.str());
  o.add("wave", static_cast<u64>(r.wave)).add("lanes", r.lanes).add("pc", r.pc).add("text", r.text);
  o.add("source", r.source).add("caller", r.caller).add("address", r.address).add("count", r.count);
  o.add("summary", summary(r)).add("cause", cause(r));
  o.raw("refused", r.refused ? "true" : "false").add("severity", std::string_view(r.note ? "note" : "error"));
  Object other;
  other.add("pc", r.other.pc).add("text", r.other.text).add("source", r.other.source);
  other.add("caller", r.other.caller);
  return o.raw("other", r.other.text.empty() ? "null" : other.str()).str();
}

std::string json_of(const KernelCounters& k) {
  Object classes, accesses, o;
  for (int i = 0; i < kNumClasses; ++i) {
    if (k.by_class[i]) classes.add(class_name(static_cast<Class>(i)), k.by_class[i]);
  }
  o.add("launches", k.launches).add("workgroups", k.workgroups).add("waves", k.waves);
  for (const auto& [name, count] : k.accesses) accesses.add(std::string(name), count);
  o.add("wave_instructions", k.wave_instructions).raw("by_class", classes.str());
  return o.raw("accesses", accesses.str()).str();
}

std::string json_of(const Kernel& k) {
  Object o;
  o.add("vgprs", k.vgprs).add("agprs", k.agprs).add("sgprs", k.sgprs).add("lds_bytes", k.lds_bytes);
  o.add("private_bytes", k.private_bytes).add("vgpr_spills", k.vgpr_spills).add("sgpr_spills", k.sgpr_spills);
  return o.add("kernarg_bytes", k.kernarg_bytes).add("max_block", k.max_block).str();
}

}  // namespace

HIP_API void aiter_like_sim_configure(u32 checks, u32 threads, u64 seed, int dry, u64 instruction_limit) {
  Settings& s = settings();
  s.checks = checks;
  s.threads = threads;
  s.seed = seed;
  s.dry = dry != 0;
  s.instruction_limit = instruction_limit;
  s.prints_reports = false;
  s.error.clear();
}

// Switching it off executes what has been deferred.
HIP_API void aiter_like_sim_set_defer(int defer) {
  if (!defer && deferring()) finish_all();
  settings().defer = defer != 0;
}

// A library can bring its own observer (run/observer.h): `make` is asked at every launch from now on, or no longer.
HIP_API void aiter_like_sim_observe(MakeObserver make, int on) { on ? add_observer(make) : remove_observer(make); }

// The tensors of one launch. Ranges that overlap (views of one storage) become one, which is writable if any of them
// is. writable = 2 means writable unless the memory is known already: then its owner has said what may be written. The
// result is how many `bases` the function has put back into the array, for aiter_like_sim_unregister.
HIP_API u64 aiter_like_sim_register(u64 count, u64* bases, const u64* bytes, const char* const* names,
                                    const u8* writable) {
  std::vector<Range> ranges;
  for (u64 i = 0; i < count; ++i) {
    if (bytes[i] == 0 || (writable[i] == 2 && known(bases[i], bytes[i]))) continue;
    ranges.push_back({bases[i], bytes[i], names[i], writable[i] != 0, false, nullptr});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.base < b.base; });
  u64 merged = 0;
  for (const Range& r : ranges) {
    Range* last = merged ? &ranges[merged - 1] : nullptr;
    if (last && r.base < last->base + last->bytes) {
      last->bytes = std::max(last->base + last->bytes, r.base + r.bytes) - last->base;
      last->writable |= r.writable;
      last->name += "+" + r.name;
    } else {
      Range copy = r;
      ranges[merged++] = std::move(copy);
    }
  }
  for (u64 i = 0; i < merged; ++i) {
    bases[i] = ranges[i].base;
    memory().add(std::move(ranges[i]));
  }
  return merged;
}

HIP_API void aiter_like_sim_unregister(u64 count, const u64* bases) {
  if (deferring()) finish_all();               // the launch that the ranges are for
  for (u64 i = 0; i < count; ++i) memory().remove(bases[i]);
}

// Who shows what kernels print; null: the process's stdout and stderr.
HIP_API void aiter_like_sim_show_output(ShowOutput show) { set_show_output(show); }

// Every report since the last call, as a list.
HIP_API char* aiter_like_sim_take_reports() {
  List list;
  for (const Report& r : take_reports()) list.raw(json_of(r));
  return give(list.str());
}

// Kernel name → counts.
HIP_API char* aiter_like_sim_counters() {
  Object all;
  for (const auto& [name, k] : counters()) all.raw(name, json_of(k));
  return give(all.str());
}

HIP_API void aiter_like_sim_reset_counters() { reset_counters(); }

// Every kernel of a code object → its resources; null with hipGetErrorString's text when it does not load.
HIP_API char* aiter_like_sim_inspect(const void* image, u64 bytes) {
  return given_of(image, bytes, [](const Code& code) {
    Object all;
    for (const Kernel& k : code.kernels) all.raw(k.name, json_of(k));
    return all.str();
  });
}

// Every instruction of a code object: [pc, text, error] each; for tests of the decoder.
HIP_API char* aiter_like_sim_disassemble(const void* image, u64 bytes) {
  return given_of(image, bytes, [](const Code& code) {
    List list;
    for (const Inst& i : code.insts) {
      List one;
      list.raw(one.raw(std::to_string(i.pc - code.text_begin)).raw(quoted(i.text)).raw(quoted(i.error)).str());
    }
    return list.str();
  });
}

// Table of isa/ → the mnemonics of its rows; for tests of the decoder.
HIP_API char* aiter_like_sim_tables() {
  Object all;
  for (const NamedTable& table : tables()) {
    List names;
    for (const Op& op : table.ops()) names.raw(quoted(op.name));
    all.raw(table.file, names.str());
  }
  return give(all.str());
}

// The instructions of a code object that have a source line: [pc, "file:line", the same of the call of the inlined
// function that they belong to, or ""] each; for tests of the debug information.
HIP_API char* aiter_like_sim_lines(const void* image, u64 bytes) {
  return given_of(image, bytes, [](const Code& code) {
    List list;
    for (const Inst& i : code.insts) {
      const std::string source = i.is_guard() ? "" : code.source_of(i.pc);
      if (source.empty()) continue;
      List one;
      one.raw(std::to_string(i.pc - code.text_begin)).raw(quoted(source)).raw(quoted(code.caller_of(i.pc)));
      list.raw(one.str());
    }
    return list.str();
  });
}

// Known device memory, by address: base and bytes of each range, at most `room` of them; how many there are.
HIP_API u64 aiter_like_sim_ranges(u64* out, u64 room) {
  const std::vector<Range> ranges = memory().snapshot();
  for (u64 i = 0; i < std::min<u64>(ranges.size(), room); ++i) {
    out[2 * i] = ranges[i].base;
    out[2 * i + 1] = ranges[i].bytes;
  }
  return ranges.size();
}

// "file:line" of an address in a code object (load/loader.h), for libraries that observe launches.
HIP_API char* aiter_like_sim_source_of(const Code* code, u64 pc) { return give(code->source_of(pc)); }
HIP_API char* aiter_like_sim_caller_of(const Code* code, u64 pc) { return give(code->caller_of(pc)); }

// A debugger asks two more things of a code object: whether a statement begins at pc, and a .debug_ section, null and 0
// where it has none.
HIP_API int aiter_like_sim_begins_statement(const Code* code, u64 pc) {
  return code->line_table().begins_statement(pc - reinterpret_cast<u64>(code->image));
}

HIP_API const void* aiter_like_sim_debug_section(const Code* code, const char* name, u64* bytes) {
  const std::vector<u8>& section = code->line_table().sections().of(name);
  *bytes = section.size();
  return section.empty() ? nullptr : section.data();
}

// Errors that checkers and failed launches have reported in this process, and the text of the last one.
HIP_API u64 aiter_like_sim_report_count() { return report_count(); }
HIP_API char* aiter_like_sim_newest_report() { return give(quoted(newest_report())); }

HIP_API void aiter_like_sim_free(char* text) { std::free(text); }

}  // namespace sim::hip
