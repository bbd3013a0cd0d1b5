// SPDX-License-Identifier: MIT
// The C interface that aiter_like/sim/debugging uses. All but attach and interrupt are called while the launch's thread
// waits in the function that was attached. Strings returned are JSON, freed by aiter_like_sim_free.
#include <algorithm>
#include <cstring>

#include "debug/debugger.h"
#include "json.h"

namespace sim::debug {
namespace {

using json::give, json::List, json::Object, json::quoted;

std::string hexadecimal(const std::vector<u8>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (u8 byte : bytes) (text += kDigits[byte >> 4]) += kDigits[byte & 15];
  return text;
}

std::string numbers(const auto& all) {
  List list;
  for (const auto& one : all) list.raw(std::to_string(one));
  return list.str();
}

WatchedGroup* group_of(u64 number) {
  const auto& all = control().groups;
  const auto is_it = [&](WatchedGroup* g) { return g->group().number() == number; };
  const auto found = std::find_if(all.begin(), all.end(), is_it);
  return found == all.end() ? nullptr : *found;
}

Wave* wave_of(u64 group, u32 wave) {
  WatchedGroup* g = group_of(group);
  return g && wave < g->group().waves.size() ? &g->group().waves[wave] : nullptr;
}

// The instruction that the wave executes next. For the wave that stopped before an instruction it is that one.
u32 next_of(const Control& c, const Wave& w, u64 group) {
  const bool stopped = c.stop.group == group && c.stop.wave == static_cast<u32>(w.id) && !c.stop.executed;
  return stopped ? c.stop.index : w.ip->index;
}

std::string json_of(const Control& c, WatchedGroup& g) {
  constexpr const char* kStates[] = {"running", "at a barrier", "running", "ended"};
  List waves;
  for (const Wave& w : g.group().waves) {
    Object o;
    o.add("wave", u64{static_cast<u32>(w.id)}).add("state", std::string_view(kStates[static_cast<int>(w.stop)]));
    o.add("next", u64{next_of(c, w, g.group().number())}).add("exec", w.exec());
    o.add("executed", g.executed(static_cast<u32>(w.id)));
    waves.raw(o.raw("calls", numbers(g.calls(static_cast<u32>(w.id)))).str());
  }
  Object o;
  o.add("number", u64{g.group().number()}).raw("id", numbers(g.group().id));
  return o.raw("waves", waves.str()).str();
}

bool fits(u64 offset, u64 bytes, u64 size) { return offset <= size && bytes <= size - offset; }

bool copy(u8* place, u64 offset, u64 bytes, u64 size, u8* data, bool write) {
  if (!place || !fits(offset, bytes, size)) return false;
  if (write) std::memcpy(place + offset, data, bytes);
  else std::memcpy(data, place + offset, bytes);
  return true;
}

}  // namespace

#define DEBUG_API extern "C" __attribute__((visibility("default")))

DEBUG_API void aiter_like_sim_debug_attach(Control::OnStop on_stop, int at_reports, int at_failures, int at_signals) {
  attach(on_stop);
  control().stops_at_reports = at_reports != 0;
  control().stops_at_failures = at_failures != 0;
  control().stops_at_signals = at_signals != 0;
  control().seen_reports = aiter_like_sim_report_count();
}

DEBUG_API void aiter_like_sim_debug_interrupt() { interrupt(); }

// The running launch: its sizes, arguments and registers.
DEBUG_API char* aiter_like_sim_debug_launch() {
  const Launch& l = *control().launch;
  const Kernel& k = *l.kernel;
  List args;
  for (const Arg& a : k.args) args.raw("[" + std::to_string(a.offset) + "," + std::to_string(a.size) + "]");
  Object o;
  o.add("code", reinterpret_cast<u64>(l.code)).add("text", l.code->text_begin);
  o.add("text_bytes", l.code->text_end - l.code->text_begin);
  o.add("kernel", k.name).add("entry", k.entry).raw("grid", numbers(l.grid)).raw("block", numbers(l.block));
  o.add("lds_bytes", u64{l.lds_bytes}).add("private_bytes", u64{l.private_bytes});
  o.add("kernarg", reinterpret_cast<u64>(l.kernarg)).add("kernarg_bytes", u64{k.kernarg_bytes});
  o.raw("args", args.str()).add("vgprs", u64{k.arch_rows()}).add("agprs", u64{k.accum_rows()});
  o.add("sgprs", u64{k.scalars()}).add("accum_offset", u64{k.accum_offset}).add("one_file", u64{k.one_file});
  o.add("source", taken(aiter_like_sim_source_of(l.code, k.entry)));
  return give(o.add("image", reinterpret_cast<u64>(l.code->image)).str());
}

// Its code: kernels, variables, instructions as [pc, text, source, whether a statement begins there].
DEBUG_API char* aiter_like_sim_debug_code() {
  const Code& code = *control().launch->code;
  List kernels, variables, instructions;
  for (const Kernel& k : code.kernels) kernels.raw("[" + quoted(k.name) + "," + std::to_string(k.entry) + "]");
  for (const Variable& v : code.variables) {
    variables.raw("[" + quoted(v.name) + "," + std::to_string(v.address) + "," + std::to_string(v.bytes) + "]");
  }
  for (const Inst& i : code.insts) {
    const std::string source = i.is_guard() ? "" : taken(aiter_like_sim_source_of(&code, i.pc));
    const bool begins = !i.is_guard() && aiter_like_sim_begins_statement(&code, i.pc);
    List one;
    one.raw(std::to_string(i.pc)).raw(quoted(i.text)).raw(quoted(source)).raw(begins ? "true" : "false");
    instructions.raw(one.str());
  }
  Object o;
  o.raw("kernels", kernels.str()).raw("variables", variables.str());
  return give(o.raw("instructions", instructions.str()).str());
}

DEBUG_API const void* aiter_like_sim_debug_dwarf(const char* name, u64* bytes) {
  return aiter_like_sim_debug_section(control().launch->code, name, bytes);
}

// Sets for each instruction of the launch's code its statement's line, 0 = none begins there, and its depth of
// inlining.
DEBUG_API void aiter_like_sim_debug_lines(const u32* lines, const u32* depths) {
  const size_t count = control().launch->code->insts.size();
  control().lines.assign(lines, lines + count);
  control().depths.clear();
  if (depths) control().depths.assign(depths, depths + count);
}

DEBUG_API void aiter_like_sim_debug_clear() {
  Control& c = control();
  for (const auto& [index, b] : c.breakpoints) c.flags[index] &= static_cast<u8>(~kBreak);
  c.breakpoints.clear();
  c.watches.clear();
}

// A breakpoint at an instruction: terms are in an array, their layout is that of `Term`.
DEBUG_API void aiter_like_sim_debug_break(u32 index, u64 number, u64 group, u32 wave, i32 lane, const Term* terms,
                                          u32 num_terms) {
  Control& c = control();
  c.flags[index] |= kBreak;
  c.breakpoints.emplace_back(index, Breakpoint{number, group, wave, lane, {terms, terms + num_terms}});
}

DEBUG_API void aiter_like_sim_debug_watch(const Watch* watch) { control().watches.push_back(*watch); }

// How the launch goes on when the attached function returns: a value of Go, for which wave, from which line; what is
// deeper than (calls, inlined) is passed over.
DEBUG_API void aiter_like_sim_debug_go(u32 go, u64 group, u32 wave, u32 line, u32 calls, u32 inlined) {
  control().step = {static_cast<Go>(go), group, wave, line, u64{calls} << 32 | inlined};
}

// Why and where it stopped.
DEBUG_API char* aiter_like_sim_debug_stop() {
  const Control& c = control();
  const Stop& s = c.stop;
  Object o;
  o.add("reason", u64{static_cast<u32>(s.reason)}).add("number", s.number).add("group", s.group);
  o.add("wave", u64{s.wave}).add("index", u64{s.index}).raw("executed", s.executed ? "true" : "false");
  o.add("lanes", s.lanes).raw("is_write", s.is_write ? "true" : "false").add("address", s.address);
  o.add("before", hexadecimal(s.before)).add("after", hexadecimal(s.after)).add("clock", c.executed);
  std::string text = quoted(s.text);
  if (s.reason == Reason::report) text = taken(aiter_like_sim_newest_report());
  return give(o.raw("text", text).str());
}

// The workgroups that run, or wait to go on, with their waves.
DEBUG_API char* aiter_like_sim_debug_groups() {
  List list;
  for (WatchedGroup* g : control().groups) list.raw(json_of(control(), *g));
  return give(list.str());
}

// Rows of the wave's vector registers, 64 dwords each. 0: there is no such wave or row; so for the others.
DEBUG_API int aiter_like_sim_debug_rows(u64 group, u32 wave, u32 first, u32 count, u32* data, int write) {
  Wave* w = wave_of(group, wave);
  return w && copy(reinterpret_cast<u8*>(w->v), first * u64{kLanes} * 4, count * u64{kLanes} * 4,
                   u64{kNumRows} * kLanes * 4, reinterpret_cast<u8*>(data), write);
}

// Places of the wave's scalar file; SCC is the one after its last.
DEBUG_API int aiter_like_sim_debug_scalars(u64 group, u32 wave, u32 first, u32 count, u32* data, int write) {
  Wave* w = wave_of(group, wave);
  if (w && first == kNumScalars && count == 1) {
    if (write) w->scc = *data != 0;
    else *data = w->scc;
    return 1;
  }
  return w && copy(reinterpret_cast<u8*>(w->s), first * u64{4}, count * u64{4}, sizeof w->s,
                   reinterpret_cast<u8*>(data), write);
}

DEBUG_API int aiter_like_sim_debug_lds(u64 group, u64 offset, u64 bytes, u8* data, int write) {
  WatchedGroup* g = group_of(group);
  return g && copy(g->group().lds, offset, bytes, control().launch->lds_bytes, data, write);
}

DEBUG_API int aiter_like_sim_debug_scratch(u64 group, u32 wave, u32 lane, u64 offset, u64 bytes, u8* data, int write) {
  Wave* w = wave_of(group, wave);
  const u64 lane_bytes = control().launch->private_bytes;
  if (!w || !w->scratch || lane >= kLanes) return 0;
  return copy(w->scratch + lane * lane_bytes, offset, bytes, lane_bytes, data, write);
}

// Memory of the process; how many bytes of it are mapped.
DEBUG_API u64 aiter_like_sim_debug_memory(u64 address, u64 bytes, u8* data, int write) {
  return write ? write_memory(address, data, bytes) : read_memory(address, data, bytes);
}

}  // namespace sim::debug
