// SPDX-License-Identifier: MIT
// ELF → Code: mapped image, relocations, kernels with their metadata, decoded functions. Input may be
// damaged: every read is checked, and a bad one is a Fault that names the field.
#include "load/loader.h"

#include <elf.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "load/container.h"
#include "load/decode.h"
#include "load/msgpack.h"
#include "load/registers.h"
#include "run/memory.h"

namespace sim {
namespace {

constexpr u16 kMachineAmdgpu = 224;
constexpr u8 kOsAbiHsa = 64;
constexpr u32 kMachGfx942 = 0x4c;
constexpr u32 kNoteMetadata = 32, kRelocAbs64 = 3, kRelocRelative64 = 13;
constexpr u64 kPage = 4096;
constexpr u64 kMaxText = u64{256} << 20;       // from the first to the last instruction; it bounds the size of inst_at

struct Symbol {
  std::string name;
  u64 address, size;
  u8 type;
};

class Loader {
 public:
  Loader(Bytes file, Code& code) : file_(file), code_(code), header_(file.read<Elf64_Ehdr>(0, "ELF header")) {}

  void load() {
    check_header();
    map_segments();
    read_symbols();
    relocate();
    read_notes();
    add_bare_descriptors();
    decode();
    keep_debug_sections();
    for (Kernel& kernel : code_.kernels) {
      if (!code_.at(kernel.entry)) throw Fault("kernel " + kernel.name + " does not start at an instruction");
      place_registers(code_, kernel);
    }
    add_ranges();
  }

 private:
  void check_header() const {
    if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB) {
      throw Fault("the code object is no 64-bit little-endian ELF file");
    }
    if (header_.e_machine != kMachineAmdgpu || header_.e_ident[EI_OSABI] != kOsAbiHsa) {
      throw Fault("the ELF file is no AMD GPU code object for the HSA runtime");
    }
    if ((header_.e_flags & 0xff) != kMachGfx942) throw Fault("the code object is not for gfx942");
    if (header_.e_phentsize != sizeof(Elf64_Phdr) || header_.e_shentsize != sizeof(Elf64_Shdr)) {
      throw Fault("the ELF file has headers of unknown size");
    }
  }

  Elf64_Phdr segment(u32 i) const {
    return file_.read<Elf64_Phdr>(header_.e_phoff + u64{i} * sizeof(Elf64_Phdr), "program header");
  }
  Elf64_Shdr section(u32 i) const {
    return file_.read<Elf64_Shdr>(header_.e_shoff + u64{i} * sizeof(Elf64_Shdr), "section header");
  }

  void map_segments() {
    u64 end = 0;                                 // segments are in the order of their addresses
    for (u32 i = 0; i < header_.e_phnum; ++i) {
      const Elf64_Phdr s = segment(i);
      if (s.p_type != PT_LOAD) continue;
      if (s.p_vaddr > kMaxImage || s.p_memsz > kMaxImage || s.p_filesz > s.p_memsz) {
        throw Fault("the ELF file has an impossible segment");
      }
      if (s.p_vaddr < end) throw Fault("segments of the ELF file overlap or are out of order");
      end = s.p_vaddr + s.p_memsz;
    }
    if (end == 0) throw Fault("the ELF file has nothing to load");
    const u64 bytes = (end + kPage - 1) / kPage * kPage;
    void* image = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (image == MAP_FAILED) {
      throw Fault("out of memory for the code object's image of " + std::to_string(bytes) + " bytes");
    }
    code_.image = static_cast<u8*>(image);
    code_.image_bytes = bytes;
    for (u32 i = 0; i < header_.e_phnum; ++i) {
      const Elf64_Phdr s = segment(i);
      if (s.p_type != PT_LOAD) continue;
      std::memcpy(code_.image + s.p_vaddr, file_.slice(s.p_offset, s.p_filesz, "segment").data, s.p_filesz);
      if (s.p_flags & PF_X && s.p_vaddr % 4 != 0) throw Fault("the ELF file's code is not aligned to 4 bytes");
      if (s.p_flags & PF_X) text_.emplace_back(s.p_vaddr, s.p_vaddr + s.p_filesz);
    }
  }

  Bytes image() const { return {code_.image, code_.image_bytes}; }
  u64 base() const { return reinterpret_cast<u64>(code_.image); }

  void read_symbols() {
    for (u32 i = 0; i < header_.e_shnum; ++i) {
      const Elf64_Shdr s = section(i);
      if (s.sh_type != SHT_DYNSYM && s.sh_type != SHT_SYMTAB) continue;
      if (s.sh_link >= header_.e_shnum) throw Fault("the symbol table names no string table");
      const Elf64_Shdr names = section(s.sh_link);
      const Bytes table = file_.slice(s.sh_offset, s.sh_size, "symbol table");
      const Bytes strings = file_.slice(names.sh_offset, names.sh_size, "string table");
      for (u64 at = 0; at + sizeof(Elf64_Sym) <= table.size; at += sizeof(Elf64_Sym)) {
        const Elf64_Sym symbol = table.read<Elf64_Sym>(at, "symbol");
        const u8 type = ELF64_ST_TYPE(symbol.st_info);
        const bool wanted = type == STT_FUNC || type == STT_OBJECT || type == STT_NOTYPE;
        if (!wanted || symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= SHN_LORESERVE) continue;
        if (symbol.st_value >= code_.image_bytes) continue;
        symbols_.push_back({std::string(strings.string_at(symbol.st_name, "symbol name")), symbol.st_value,
                            symbol.st_size, type});
      }
    }
    std::sort(symbols_.begin(), symbols_.end(),
              [](const Symbol& a, const Symbol& b) { return a.address < b.address; });
    for (const Symbol& s : symbols_) {
      if (s.type == STT_OBJECT && s.size > code_.image_bytes - s.address) {
        throw Fault("variable " + s.name + " exceeds the code object's image");
      }
      if (s.type == STT_OBJECT && !s.name.ends_with(".kd") && !code_variable(s.name)) {
        code_.variables.push_back({s.name, base() + s.address, s.size});
      }
    }
  }

  bool code_variable(std::string_view name) const {
    return std::any_of(code_.variables.begin(), code_.variables.end(),
                       [&](const Variable& v) { return v.name == name; });
  }

  const Symbol* symbol(std::string_view name) const {
    for (const Symbol& s : symbols_) {
      if (s.name == name) return &s;
    }
    return nullptr;
  }

  void relocate() {
    for (u32 i = 0; i < header_.e_shnum; ++i) {
      const Elf64_Shdr s = section(i);
      if (s.sh_type != SHT_RELA || !(s.sh_flags & SHF_ALLOC)) continue;
      const Bytes table = file_.slice(s.sh_offset, s.sh_size, "relocations");
      for (u64 at = 0; at + sizeof(Elf64_Rela) <= table.size; at += sizeof(Elf64_Rela)) {
        const Elf64_Rela r = table.read<Elf64_Rela>(at, "relocation");
        const u32 type = static_cast<u32>(ELF64_R_TYPE(r.r_info));
        u64 value = base() + static_cast<u64>(r.r_addend);
        if (type == kRelocAbs64) {
          value += symbol_value(s.sh_link, ELF64_R_SYM(r.r_info));
        } else if (type != kRelocRelative64) {
          throw Fault("relocation type " + std::to_string(type) + " is not supported");
        }
        image().slice(r.r_offset, 8, "relocation's target");
        std::memcpy(code_.image + r.r_offset, &value, 8);
      }
    }
  }

  u64 symbol_value(u32 table_index, u64 index) const {
    if (table_index >= header_.e_shnum || index > kMaxImage) throw Fault("relocation names no symbol");
    const Elf64_Shdr table = section(table_index);
    const auto s = file_.read<Elf64_Sym>(table.sh_offset + index * sizeof(Elf64_Sym), "relocation's symbol");
    if (s.st_shndx == SHN_UNDEF) throw Fault("the code object has an undefined symbol");
    return s.st_value;
  }

  // With the new offload driver one ELF holds several metadata notes.
  void read_notes() {
    u64 bytes = 0;
    for (u32 i = 0; i < header_.e_phnum; ++i) {
      const Elf64_Phdr s = segment(i);
      if (s.p_type != PT_NOTE) continue;
      // A table of equal headers would have the same notes read as often as it is long.
      if ((bytes += s.p_filesz) > file_.size) throw Fault("the ELF file has more notes than bytes");
      const Bytes notes = file_.slice(s.p_offset, s.p_filesz, "notes");
      for (u64 at = 0; at + sizeof(Elf64_Nhdr) <= notes.size;) {
        const auto note = notes.read<Elf64_Nhdr>(at, "note");
        const u64 name_at = at + sizeof note, name_size = (u64{note.n_namesz} + 3) / 4 * 4;
        const Bytes payload = notes.slice(name_at + name_size, note.n_descsz, "note");
        if (note.n_type == kNoteMetadata) read_metadata(payload.text());
        at = name_at + name_size + (u64{note.n_descsz} + 3) / 4 * 4;
      }
    }
  }

  void read_metadata(std::string_view bytes) {
    const msgpack::Value root = msgpack::Reader(bytes).read();
    const msgpack::Value* kernels = root.get("amdhsa.kernels");
    if (!kernels || kernels->kind != msgpack::Value::Kind::array) throw Fault("the metadata lacks amdhsa.kernels");
    for (const msgpack::Value& entry : kernels->items) add_kernel(entry);
    const msgpack::Value* formats = root.get("amdhsa.printf");
    if (!formats) return;
    for (const msgpack::Value& format : formats->items) add_format(format.text);
  }

  // HIP's formats of printf: "0:0:", the hash as hexadecimal digits, a comma, the format.
  void add_format(std::string_view text) {
    constexpr std::string_view kBegin = "0:0:";
    const size_t comma = text.find(',');
    u64 hash = 0;
    const char* const digits = text.data() + kBegin.size();
    const bool hips = text.starts_with(kBegin) && comma != text.npos &&
                      std::from_chars(digits, text.data() + comma, hash, 16).ptr == text.data() + comma;
    if (hips) code_.formats[hash] = text.substr(comma + 1);
    else code_.has_opencl_formats = true;
  }

  void add_kernel(const msgpack::Value& entry) {
    Kernel k;
    k.name = entry.string(".name");
    k.symbol = entry.string(".symbol");
    const auto is_control = [](char c) { return static_cast<u8>(c) < 0x20 || c == 0x7f; };
    if (k.name.empty() || std::any_of(k.name.begin(), k.name.end(), is_control)) {
      throw Fault("the name of a kernel is damaged in the metadata");
    }
    k.kernarg_bytes = count(entry, ".kernarg_segment_size", k);
    k.max_block = count(entry, ".max_flat_workgroup_size", k);
    k.vgprs = count(entry, ".vgpr_count", k);
    k.sgprs = count(entry, ".sgpr_count", k);
    if (entry.get(".agpr_count")) k.agprs = count(entry, ".agpr_count", k);
    if (entry.get(".vgpr_spill_count")) k.vgpr_spills = count(entry, ".vgpr_spill_count", k);
    if (entry.get(".sgpr_spill_count")) k.sgpr_spills = count(entry, ".sgpr_spill_count", k);
    if (const msgpack::Value* args = entry.get(".args")) {
      for (const msgpack::Value& arg : args->items) add_arg(arg, k);
    }
    const Symbol* descriptor = symbol(k.symbol);
    if (!descriptor) throw Fault("kernel " + k.name + " has no descriptor " + k.symbol);
    read_descriptor(descriptor->address, k);
    code_.kernels.push_back(std::move(k));
  }

  // A count that LLVM always writes. Damage must not pass for another count.
  static u32 count(const msgpack::Value& entry, std::string_view key, const Kernel& k) {
    const msgpack::Value* value = entry.get(key);
    if (!value || value->kind != msgpack::Value::Kind::integer || value->number > 0xffffffff) {
      throw Fault("kernel " + k.name + ": " + std::string(key) + " is missing or damaged in the metadata");
    }
    return static_cast<u32>(value->number);
  }

  static void add_arg(const msgpack::Value& arg, Kernel& k) {
    const u64 offset = count(arg, ".offset", k), size = count(arg, ".size", k);
    if (size > 4096 || offset > k.kernarg_bytes || size > k.kernarg_bytes - offset) {
      throw Fault("kernel " + k.name + " has an argument outside its argument segment");
    }
    const std::string_view kind = arg.string(".value_kind");
    if (kind.empty()) throw Fault("kernel " + k.name + ": .value_kind is missing or damaged in the metadata");
    const u32 at = static_cast<u32>(offset), bytes = static_cast<u32>(size);
    if (kind.starts_with("hidden_")) k.hidden.push_back({at, bytes, std::string(kind)});
    else k.args.push_back({at, bytes});
  }

  // Byte offsets of the kernel descriptor: LLVM's AMDGPU usage guide, "Code Object V3 Kernel Descriptor".
  void read_descriptor(u64 at, Kernel& k) const {
    const Bytes d = image().slice(at, 64, "kernel descriptor");
    k.lds_bytes = d.read<u32>(0, "descriptor");
    k.private_bytes = d.read<u32>(4, "descriptor");
    k.kernarg_bytes = std::max(k.kernarg_bytes, d.read<u32>(8, "descriptor"));
    k.entry = base() + at + static_cast<u64>(d.read<i64>(16, "descriptor"));
    k.rsrc3 = d.read<u32>(44, "descriptor");
    k.rsrc1 = d.read<u32>(48, "descriptor");
    k.rsrc2 = d.read<u32>(52, "descriptor");
    k.properties = d.read<u16>(56, "descriptor");
    const u16 preload = d.read<u16>(58, "descriptor");
    k.preload_dwords = preload & 0x7f;
    k.preload_offset = preload >> 7;
    k.accum_offset = ((k.rsrc3 & 0x3f) + 1) * 4;
    if (k.lds_bytes > 65536) throw Fault("kernel " + k.name + " wants more than 64 KiB of LDS");
    if (k.private_bytes > 1 << 20) throw Fault("kernel " + k.name + " wants more than 1 MiB of scratch per lane");
    if (k.kernarg_bytes > 1 << 16) throw Fault("kernel " + k.name + " wants more than 64 KiB of arguments");
    if (k.preload_offset + k.preload_dwords > k.kernarg_bytes / 4) {
      throw Fault("kernel " + k.name + " preloads arguments beyond its argument segment");
    }
  }

  // Hand-written code may come without metadata: the descriptor says enough to launch it.
  void add_bare_descriptors() {
    for (const Symbol& s : symbols_) {
      if (!s.name.ends_with(".kd") || s.size != 64) continue;
      const auto known = [&](const Kernel& k) { return k.symbol == s.name; };
      if (std::any_of(code_.kernels.begin(), code_.kernels.end(), known)) continue;
      Kernel k;
      k.name = s.name.substr(0, s.name.size() - 3);
      k.symbol = s.name;
      read_descriptor(s.address, k);
      k.vgprs = k.rows();
      code_.kernels.push_back(std::move(k));
    }
  }

  // Each function symbol's bytes. A function without a size (assembly) reaches to the next symbol.
  void decode() {
    for (const auto& [begin, end] : text_) {
      if (code_.text_end == 0) code_.text_begin = base() + begin;
      code_.text_begin = std::min(code_.text_begin, base() + begin);
      code_.text_end = std::max(code_.text_end, base() + end);
    }
    if (code_.text_end - code_.text_begin > kMaxText) throw Fault("the ELF file's code is spread over too much memory");
    code_.inst_at.assign((code_.text_end - code_.text_begin) / 4 + 1, ~0u);
    for (const auto& [begin, end] : text_) decode_segment(begin, end);
    code_.classes.reserve(code_.insts.size());
    for (const Inst& inst : code_.insts) code_.classes.push_back(inst.op ? inst.op->spec.cls : Class::other);
  }

  void decode_segment(u64 begin, u64 end) {
    std::vector<std::pair<u64, u64>> starts;       // address, size
    for (const Symbol& s : symbols_) {
      if (s.type != STT_FUNC || s.address < begin || s.address >= end || s.address % 4 != 0) continue;
      if (starts.empty() || starts.back().first != s.address) starts.emplace_back(s.address, s.size);
    }
    if (starts.empty()) starts.emplace_back(begin, 0);
    for (size_t i = 0; i < starts.size(); ++i) {
      const u64 next = i + 1 < starts.size() ? starts[i + 1].first : end;
      const u64 first = starts[i].first, size = starts[i].second;
      const u64 last = size && size < next - first ? first + size : next;
      const size_t count = code_.insts.size();
      decode_range(code_.image + first, base() + first, base() + last, code_.insts);
      // The last one is the guard, which is not at any address.
      for (size_t n = count; n + 1 < code_.insts.size(); ++n) {
        code_.inst_at[(code_.insts[n].pc - code_.text_begin) / 4] = static_cast<u32>(n);
      }
    }
  }

  // Lines are a convenience, so damage of these sections is no reason to refuse the code. Compressed ones are not read.
  void keep_debug_sections() {
    try {
      const Elf64_Shdr names = section(header_.e_shstrndx);
      const Bytes strings = file_.slice(names.sh_offset, names.sh_size, "section names");
      for (u32 i = 0; i < header_.e_shnum; ++i) {
        const Elf64_Shdr s = section(i);
        if (s.sh_type != SHT_PROGBITS || s.sh_flags & (SHF_ALLOC | SHF_COMPRESSED)) continue;
        const std::string_view name = strings.string_at(s.sh_name, "section name");
        if (!name.starts_with(".debug_")) continue;
        const Bytes bytes = file_.slice(s.sh_offset, s.sh_size, "debug section");
        code_.debug.by_name[std::string(name)].assign(bytes.data, bytes.data + bytes.size);
      }
    } catch (const Fault&) {
      code_.debug = {};
    }
  }

  void add_ranges() const {
    for (u32 i = 0; i < header_.e_phnum; ++i) {
      const Elf64_Phdr s = segment(i);
      if (s.p_type != PT_LOAD || s.p_memsz == 0) continue;
      memory().add({base() + s.p_vaddr, s.p_memsz, "image of " + code_.name, (s.p_flags & PF_W) != 0, false, nullptr});
    }
  }

  Bytes file_;
  Code& code_;
  Elf64_Ehdr header_;
  std::vector<std::pair<u64, u64>> text_;        // executable segments, as offsets
  std::vector<Symbol> symbols_;                  // sorted by address
};

}  // namespace

Code::~Code() {
  if (!image) return;
  memory().remove_within(reinterpret_cast<u64>(image), image_bytes);
  munmap(image, image_bytes);
}

const Kernel* Code::find(std::string_view kernel) const {
  for (const Kernel& k : kernels) {
    if (k.name == kernel || k.symbol == kernel) return &k;
  }
  return nullptr;
}

const Inst* Code::at(u64 pc) const {
  if (pc < text_begin || pc >= text_end || (pc - text_begin) % 4 != 0) return nullptr;
  const u32 index = inst_at[(pc - text_begin) / 4];
  return index == ~0u ? nullptr : &insts[index];
}

const LineTable& Code::line_table() const {
  const u64 base = reinterpret_cast<u64>(image);
  std::call_once(lines_once, [&] { lines = LineTable(std::move(debug), text_begin - base); });
  return lines;
}

std::string Code::source_of(u64 pc) const { return line_table().at(pc - reinterpret_cast<u64>(image)); }
std::string Code::caller_of(u64 pc) const { return line_table().called_at(pc - reinterpret_cast<u64>(image)); }

void Wave::jump(i64 pc) {
  const Inst* to = group->launch->code->at(static_cast<u64>(pc));
  if (!to) throw Fault("jump to an address that holds no instruction");
  ip = to;
}

std::unique_ptr<Code> load_code(const void* image, u64 bytes, std::string name) {
  auto code = std::make_unique<Code>();
  code->name = std::move(name);
  try {
    std::vector<u8> unpacked;
    Loader(find_elf({static_cast<const u8*>(image), bytes}, unpacked), *code).load();
  } catch (const Fault& fault) {
    throw Fault(code->name + ": " + fault.what());
  }
  return code;
}

}  // namespace sim
