#include "targets.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/files/file.hpp"
#include "ckpt/dcp/parse_metadata.hpp"
#include "ckpt/dcp/record.hpp"
#include "ckpt/io/crc32.hpp"
#include "ckpt/io/endian.hpp"
#include "ckpt/pickle/reader.hpp"
#include "ckpt/read/inspection.hpp"
#include "ckpt/safetensors/header.hpp"
#include "ckpt/torch/legacy.hpp"
#include "ckpt/torch/tensor.hpp"
#include "ckpt/torchscript/classes.hpp"
#include "ckpt/torchscript/reads.hpp"
#include "ckpt/verify/archive.hpp"
#include "ckpt/verify/job.hpp"
#include "ckpt/zip/index.hpp"
#include "ckpt/zip/layout.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/sample_source.hpp"

namespace accel::fuzz {
namespace {

using namespace ckpt;

/// A file in memory, the same for all inputs. Creating one for each input would take most of the time.
class MemoryFile {
 public:
  static MemoryFile& instance() {
    static MemoryFile file;
    return file;
  }

  const std::filesystem::path& hold(std::span<const std::byte> bytes) {
    const bool written = ::ftruncate(fd_, 0) == 0 &&
                         ::pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
    if (!written) std::abort();
    return path_;
  }

 private:
  MemoryFile() : fd_(::memfd_create("input", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    if (fd_ < 0) std::abort();
  }

  int fd_;
  std::filesystem::path path_;
};

/// Reads the first, the middle and the last samples of training data.
void read_samples(const config::DataSource& from) {
  const auto source = open_data(from);
  if (source->size() == 0) return;
  std::vector<std::vector<std::byte>> values;
  std::vector<std::span<std::byte>> out;
  for (const SampleField& field : source->fields()) out.emplace_back(values.emplace_back(field.bytes));
  for (const std::int64_t sample : {std::int64_t{0}, source->size() / 2, source->size() - 1})
    source->read(sample, Labels::kInputs, out);
  (void)source->fingerprint();
}

// Reads an Arrow file, once as a table of rows and once as documents.
void read_arrow(std::span<const std::byte> input) {
  config::DataSource source{.format = "arrow", .path = MemoryFile::instance().hold(input).string()};
  try {
    read_samples(source);
  } catch (const Error&) {  // The rows may be documents yet.
  }
  source.format = "documents";
  source.sequence_length = 16;
  source.packing = "best_fit";
  read_samples(source);
}

void read_pickle(std::span<const std::byte> input) {
  const pickle::Value value = pickle::parse(input);
  (void)pickle::describe(value);
  if (!pickle::same(value, value)) std::abort();
}

void read_record(std::span<const std::byte> input) {
  (void)item_record_bytes(input);
  const ItemRecord record = decode_item_record(input);
  const std::string again = encode_item_record(record);
  if (!std::ranges::equal(std::as_bytes(std::span(again)), input)) std::abort();
}

// Sets the right checksum, which mutations seldom hit.
void read_item_record(std::span<const std::byte> input) {
  constexpr std::size_t kSumAt = 20;
  std::vector<std::byte> summed(input.begin(), input.end());
  if (summed.size() >= kItemRecordHead) {
    std::string sum;
    put_uint(sum, crc32(input.subspan(kItemRecordHead)), 4);
    std::ranges::copy(std::as_bytes(std::span(sum)), summed.begin() + kSumAt);
  }
  read_record(summed);
}

void read_metadata(std::span<const std::byte> input) { (void)parse_dcp_metadata(input); }

// The first 8 bytes of the input are the length of the buffer behind the header.
void read_safetensors(std::span<const std::byte> input) {
  if (input.size() < 8) return;
  std::uint64_t buffer_bytes = 0;
  for (std::size_t i = 0; i < 8; ++i) buffer_bytes |= static_cast<std::uint64_t>(input[i]) << (8 * i);
  (void)parse_safetensors_header(input.subspan(8), buffer_bytes);
}

// Reads the input as the code of TorchScript classes.
void read_script(std::span<const std::byte> input) {
  const std::string_view source(reinterpret_cast<const char*>(input.data()), input.size());
  for (const auto& [name, type] : parse_script_classes(source)) {
    for (const ScriptMethod& method : type.methods) (void)attribute_reads(method.source);
  }
  (void)attribute_reads(source);
}

// Reads an archive, or a file of torch.save before torch 1.6.
void read_zip(std::span<const std::byte> input) {
  const File file = File::open_read(MemoryFile::instance().hold(input));
  (void)check_archive(file, {"input", "", 0, input.size()});
  const FileWindow window(file, 0, input.size());
  if (looks_like_legacy_torch(window)) {
    (void)verify_torch(file.path(), "torch");
    (void)inspect(file.path());
    return;
  }
  const ZipIndex zip(window);
  for (const ZipEntry& entry : zip.entries()) (void)read_record(window, entry);
}

// Puts an archive around the input, a pickle: a mutation of a whole archive would mostly fail its checksum.
// The first byte chooses between torch.save and TorchScript, and the size of the storages.
void read_torch(std::span<const std::byte> input) {
  if (input.empty()) return;
  const auto choice = std::to_integer<unsigned>(input[0]);
  const std::string storage(choice >> 1, 'x');
  const auto text_of = [](std::span<const std::byte> bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  std::vector<std::pair<std::string, std::string>> contents = {
      {"archive/data.pkl", text_of(input.subspan(1))},
      {"archive/data/0", storage},
      {"archive/data/1", storage}};
  if ((choice & 1) != 0) {
    contents.emplace_back("archive/constants.pkl", "\x80\x02).");
    contents.emplace_back("archive/code/__torch__.py", "class Small(Module):\n  __parameters__ = []\n");
    contents.emplace_back("archive/code/__torch__/torch/nn/modules/linear.py",
                          "class Linear(Module):\n  __parameters__ = [\"weight\", \"bias\", ]\n");
  }
  std::vector<ZipRecord> records;
  records.reserve(contents.size());
  for (const auto& [name, data] : contents) records.push_back({name, data.size()});
  const ZipLayout layout(std::move(records));
  std::string archive;
  std::vector<std::uint32_t> crcs;
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const std::string& data = contents[i].second;
    crcs.push_back(crc32(std::as_bytes(std::span(data))));
    archive += layout.header(i) + data + layout.descriptor(i, crcs.back());
  }
  archive += layout.directory(crcs);

  const std::filesystem::path& path = MemoryFile::instance().hold(std::as_bytes(std::span(archive)));
  (void)verify_torch(path, "torch");
  (void)inspect(path);
}

constexpr std::array<Target, 8> kTargets = {{{"arrow", read_arrow},
                                             {"item_record", read_item_record},
                                             {"metadata", read_metadata},
                                             {"pickle", read_pickle},
                                             {"safetensors", read_safetensors},
                                             {"script", read_script},
                                             {"torch", read_torch},
                                             {"zip", read_zip}}};

}  // namespace

std::span<const Target> targets() { return kTargets; }

void run_target(std::string_view name, std::span<const std::byte> input) {
  const auto found = std::find_if(kTargets.begin(), kTargets.end(),
                                  [&](const Target& target) { return target.name == name; });
  if (found == kTargets.end()) std::abort();
  try {
    found->read(input);
  } catch (const Error& e) {
    if (e.message().empty()) std::abort();
  }
}

}  // namespace accel::fuzz
