// SPDX-License-Identifier: MIT
// Finding the gfx942 ELF file in what clang wraps around it.
#include "load/container.h"

#include <dlfcn.h>
#include <elf.h>

#include <cstdio>
#include <fstream>

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

// How many bytes from `data` on the process can read: this bounds an image of unknown size whose headers are damaged.
u64 readable_bytes(const u8* data) {
  const u64 begin = reinterpret_cast<u64>(data);
  u64 end = begin;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long low = 0, high = 0;
    char readable = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %c", &low, &high, &readable) != 3 || high <= end) continue;
    if (low > end || readable != 'r') break;
    end = high;
  }
  if (end == begin) throw Fault("the code object is at an address that cannot be read");
  return std::min(end - begin, kMaxImage);
}

// The gfx942 entry of a bundle.
Bytes unbundle(Bytes bundle) {
  constexpr u64 kHeader = 24;
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

// Decompresses a CCOB: magic, u16 version, u16 method, then by version [file size,] unpacked size, u64 hash, payload.
std::vector<u8> decompress(Bytes input, bool is_bounded) {
  const u16 version = input.read<u16>(4, "compressed bundle"), method = input.read<u16>(6, "compressed bundle");
  if (method != 1) throw Fault("the code object is compressed by other means than zstd");
  u64 file_size = input.size, unpacked_size = 0, header = 0;
  if (version == 1) {
    unpacked_size = input.read<u32>(8, "compressed bundle");
    header = 20;
    if (!is_bounded) throw Fault("the compressed code object does not say how long it is");
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
  // zstd packs code objects to a tenth at best: a size far beyond that is damage, not a reason to allocate it.
  if (file_size < header || unpacked_size > std::min(kMaxImage, file_size * 1024)) {
    throw Fault("the compressed code object has impossible sizes");
  }
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
  bool is_bounded = input.size != 0;
  if (!is_bounded) input.size = readable_bytes(input.data);
  bool in_bundle = false;                        // a damaged bundle may contain itself
  while (true) {
    const std::string_view head = input.text().substr(0, kBundle.size());
    if (head.starts_with(kBundle) && !in_bundle) {
      input = unbundle(input);
      in_bundle = is_bounded = true;
    } else if (head.starts_with(kCompressed) && unpacked.empty()) {
      unpacked = decompress(input, is_bounded);
      input = {unpacked.data(), unpacked.size()};
    } else if (head.starts_with(kElf)) {
      return input;
    } else {
      throw Fault("this is neither an ELF file nor an offload bundle");
    }
  }
}

}  // namespace sim
