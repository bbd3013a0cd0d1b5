// SPDX-License-Identifier: MIT
// Finding the gfx942 ELF file in what clang wraps around it.
#include "container.h"

#include <dlfcn.h>
#include <elf.h>

namespace sim {
namespace {

// The two functions of zstd that are needed, found at run time: most code objects are not compressed.
struct Zstd {
  size_t (*decompress)(void* to, size_t to_bytes, const void* from, size_t from_bytes) = nullptr;
  unsigned (*is_error)(size_t) = nullptr;
};

const Zstd& zstd() {
  static const Zstd loaded = [] {
    void* library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      throw Fault("the code object is compressed (CCOB) and libzstd.so.1 is not installed; build it with "
                  "--no-offload-compress");
    }
    return Zstd{reinterpret_cast<decltype(Zstd::decompress)>(dlsym(library, "ZSTD_decompress")),
                reinterpret_cast<decltype(Zstd::is_error)>(dlsym(library, "ZSTD_isError"))};
  }();
  return loaded;
}

bool is_gfx942(std::string_view id) {
  if (!id.starts_with("hip")) return false;      // hip- or hipv4-
  const size_t at = id.find("gfx942");
  return at != std::string_view::npos && (at + 6 == id.size() || id[at + 6] == ':');
}

// The gfx942 entry of a bundle. The bundle's own headers bound it when its size is unknown.
Bytes unbundle(Bytes bundle) {
  constexpr u64 kHeader = 24;
  const bool unknown = bundle.size == 0;
  if (unknown) bundle.size = kMaxImage;
  const u64 count = bundle.read<u64>(kHeader, "bundle header");
  if (count > 1024) throw Fault("offload bundle has an impossible number of entries");
  std::string found;
  u64 at = kHeader + 8;
  for (u64 i = 0; i < count; ++i) {
    const u64 offset = bundle.read<u64>(at, "bundle entry"), size = bundle.read<u64>(at + 8, "bundle entry");
    const u64 id_size = bundle.read<u64>(at + 16, "bundle entry");
    if (id_size > 4096) throw Fault("offload bundle has an impossible entry");
    const std::string_view id = bundle.slice(at + 24, id_size, "bundle entry").text();
    at += 24 + id_size;
    if (is_gfx942(id) && size > 0) return bundle.slice(offset, size, "bundle entry's code object");
    found += std::string(found.empty() ? "" : ", ") + std::string(id);
  }
  throw Fault("offload bundle has no code object for gfx942, only: " + (found.empty() ? "nothing" : found));
}

// A bare ELF of unknown size ends where its section headers do (linkers put them last).
u64 elf_extent(const u8* data) {
  Elf64_Ehdr header;
  std::memcpy(&header, data, sizeof header);
  u64 end = header.e_shoff + u64{header.e_shnum} * header.e_shentsize;
  return std::min(end, kMaxImage);
}

// Decompresses a CCOB: magic, u16 version, u16 method, then by version [file size,] unpacked size, u64 hash, payload.
std::vector<u8> decompress(Bytes input) {
  if (input.size == 0) input.size = kMaxImage;
  const u16 version = input.read<u16>(4, "compressed bundle"), method = input.read<u16>(6, "compressed bundle");
  if (method != 1) throw Fault("the code object is compressed by other means than zstd");
  u64 file_size = input.size, unpacked_size = 0, header = 0;
  if (version == 1) {
    unpacked_size = input.read<u32>(8, "compressed bundle");
    header = 20;
    if (input.size == kMaxImage) throw Fault("the compressed code object does not say how long it is");
  } else if (version == 2) {
    file_size = input.read<u32>(8, "compressed bundle");
    unpacked_size = input.read<u32>(12, "compressed bundle");
    header = 24;
  } else if (version == 3) {
    file_size = input.read<u64>(8, "compressed bundle");
    unpacked_size = input.read<u64>(16, "compressed bundle");
    header = 32;
  } else {
    throw Fault("the code object is compressed in a format of unknown version " + std::to_string(version));
  }
  if (file_size < header || unpacked_size > kMaxImage) throw Fault("the compressed code object has impossible sizes");
  const Bytes payload = input.slice(header, file_size - header, "compressed bundle");
  const Zstd& library = zstd();
  std::vector<u8> out(unpacked_size);
  const size_t n = library.decompress(out.data(), out.size(), payload.data, payload.size);
  if (library.is_error(n) || n != out.size()) throw Fault("the compressed code object is damaged");
  return out;
}

}  // namespace

Bytes find_elf(Bytes input, std::vector<u8>& unpacked) {
  constexpr std::string_view kBundle = "__CLANG_OFFLOAD_BUNDLE__", kCompressed = "CCOB", kElf = "\x7f""ELF";
  const u64 known = input.size ? input.size : kBundle.size();
  const std::string_view head(reinterpret_cast<const char*>(input.data), std::min<u64>(known, kBundle.size()));
  if (head.starts_with(kBundle)) return find_elf(unbundle(input), unpacked);
  if (head.starts_with(kCompressed) && unpacked.empty()) {
    unpacked = decompress(input);
    return find_elf({unpacked.data(), unpacked.size()}, unpacked);
  }
  if (!head.starts_with(kElf)) throw Fault("this is neither an ELF file nor an offload bundle");
  if (input.size == 0) input.size = elf_extent(input.data);
  return input;
}

}  // namespace sim
