// SPDX-License-Identifier: MIT
// Bytes → text by LLVM's C disassembler, found at run time; text → Inst by parse.cpp. Joins the tables of isa/.
#include "load/decode.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "load/loader.h"
#include "run/traps.h"

namespace sim {
namespace {

// The part of llvm-c/Disassembler.h that is used here. Its ABI is stable, so no LLVM headers are needed to build.
struct Llvm {
  void* (*create)(const char* triple, const char* cpu, void* info, int tag, void* op_info, void* symbol) = nullptr;
  void (*dispose)(void*) = nullptr;
  size_t (*disassemble)(void*, u8* bytes, u64 size, u64 pc, char* text, size_t text_size) = nullptr;
};

constexpr const char* kLibraries[] = {
    "libLLVM.so.22.1", "libLLVM-22.so.1", "/usr/lib/llvm-22/lib/libLLVM.so.22.1", "libLLVM.so.21.1",
    "libLLVM.so.20.1", "libLLVM.so.19.1", "libLLVM-19.so.1", "/usr/lib/llvm-19/lib/libLLVM.so.19.1",
    "/opt/rocm/llvm/lib/libLLVM.so", "/opt/rocm/lib/llvm/lib/libLLVM.so",
};

Llvm load_llvm() {
  void* library = nullptr;
  std::string tried;
  for (const char* name : kLibraries) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    // A library without the AMDGPU target is passed over.
    if (library && dlsym(library, "LLVMInitializeAMDGPUDisassembler")) break;
    tried += tried.empty() ? name : std::string(", ") + name;
    library = nullptr;
  }
  if (!library) throw Fault("the simulator needs LLVM's shared library (Debian: libllvm22); tried " + tried);
  for (const char* init : {"LLVMInitializeAMDGPUTargetInfo", "LLVMInitializeAMDGPUTargetMC",
                           "LLVMInitializeAMDGPUDisassembler"}) {
    reinterpret_cast<void (*)()>(dlsym(library, init))();
  }
  Llvm llvm;
  llvm.create = reinterpret_cast<decltype(llvm.create)>(dlsym(library, "LLVMCreateDisasmCPU"));
  llvm.dispose = reinterpret_cast<decltype(llvm.dispose)>(dlsym(library, "LLVMDisasmDispose"));
  llvm.disassemble = reinterpret_cast<decltype(llvm.disassemble)>(dlsym(library, "LLVMDisasmInstruction"));
  return llvm;
}

const Llvm& llvm() {
  static const Llvm loaded = load_llvm();
  return loaded;
}

// A context is not thread-safe, so each thread has its own.
class Disassembler {
 public:
  Disassembler() { open(); }
  ~Disassembler() { llvm().dispose(context_); }

  // Bytes of the instruction, 0 for none. LLVM 22 follows a null pointer on some bytes that no compiler makes.
  size_t operator()(u8* bytes, u64 size, u64 pc, char* text, size_t text_size) {
    size_t used = 0;
    try {
      with_traps([&] { used = llvm().disassemble(context_, bytes, size, pc, text, text_size); });
    } catch (const Fault&) {
      open();                                    // without disposing of the old context, which may be in any state
      used = 0;
    }
    return used;
  }

 private:
  void open() {
    context_ = llvm().create("amdgcn-amd-amdhsa", "gfx942", nullptr, 0, nullptr, nullptr);
    if (!context_) throw Fault("LLVM has no disassembler for gfx942");
  }

  void* context_ = nullptr;
};

using Table = std::unordered_map<std::string_view, const Op*>;

constexpr NamedTable kTables[] = {
    {"sop", sop_ops}, {"sopp", sopp_ops}, {"smem", smem_ops}, {"vop1", vop1_ops}, {"vop2", vop2_ops},
    {"vopc", vopc_ops}, {"vop3_int", vop3_int_ops}, {"vop3_float", vop3_float_ops}, {"vop3p", vop3p_ops},
    {"mfma", mfma_ops}, {"ds", ds_ops}, {"flat", flat_ops}, {"mubuf", mubuf_ops}, {"mtbuf", mtbuf_ops},
};

Table join_tables() {
  Table table;
  for (const NamedTable& part : kTables) {
    for (const Op& op : part.ops()) {
      if (!table.emplace(op.name, &op).second) throw Fault("two rows define " + std::string(op.name));
    }
  }
  return table;
}

void fail(Wave&, const Inst& inst) { throw Fault(inst.error); }

}  // namespace

const Op* find_op(std::string_view name) {
  static const Table table = join_tables();
  const auto it = table.find(name);
  return it == table.end() ? nullptr : it->second;
}

std::span<const NamedTable> tables() { return kTables; }

void set_error(Inst& inst, std::string why) {
  inst.error = std::move(why);
  inst.run = inst.run_observed = fail;
}

void decode_range(const u8* bytes, u64 begin, u64 end, std::vector<Inst>& out) {
  thread_local Disassembler disassembler;
  install_traps();
  char text[512];
  u64 pc = begin;
  while (pc + 4 <= end) {
    Inst& inst = out.emplace_back();
    inst.pc = pc;
    inst.index = static_cast<u32>(out.size() - 1);
    u8* at = const_cast<u8*>(bytes + (pc - begin));
    const size_t size = disassembler(at, end - pc, pc, text, sizeof text);
    if (size == 0 || size % 4 != 0) {
      inst.text = "<no instruction>";
      set_error(inst, "these bytes are no gfx942 instruction");
    } else {
      inst.size = static_cast<u8>(size);
      parse_inst(text, at, inst);
    }
    pc += inst.size;
  }
  // Executing past the last instruction must not run into the next function's.
  Inst& guard = out.emplace_back();
  guard.pc = pc;
  guard.index = static_cast<u32>(out.size() - 1);
  guard.text = kGuardText;
  set_error(guard, "execution ran past the end of a function");
}

}  // namespace sim
