// Prints what a source of training data says of itself and every byte of its samples, as JSON on one line.
// Usage: samples-dump-tool FORMAT SEQUENCE_LENGTH PACKING PATH ...
// Each PATH is opened by itself, and an Error stands in place of the samples: {"error", "hint"}. A PATH of
// the form "A|B" is a mixture of A and B with equal weights. Labels are the inputs themselves.

#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/visible.hpp"
#include "data/formats/data_formats.hpp"
#include "data/formats/sample_source.hpp"

namespace {

using namespace accel;
using Json = nlohmann::ordered_json;

Json dump(const config::DataSource& from) {
  const auto source = open_data(from);
  Json document = {
      {"samples", source->size()}, {"fingerprint", source->fingerprint()}, {"fields", Json::array()}};
  std::vector<std::vector<std::byte>> values;
  std::vector<std::span<std::byte>> out;
  for (const SampleField& field : source->fields()) {
    document["fields"].push_back({{"name", visible(field.name)},
                                  {"dtype", ckpt::torch_name(field.dtype)},
                                  {"shape", field.shape},
                                  {"obstacle", visible(field.obstacle)},
                                  {"rows", Json::array()}});
    out.emplace_back(values.emplace_back(field.bytes));
  }
  for (std::int64_t sample = 0; sample < source->size(); ++sample) {
    source->read(sample, Labels::kInputs, out);
    for (std::size_t field = 0; field < out.size(); ++field) {
      if (out[field].empty()) continue;
      std::string text;
      for (const std::byte byte : out[field]) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
      document["fields"][field]["rows"].push_back(text);
    }
  }
  return document;
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  for (std::size_t i = 3; i < words.size(); ++i) {
    try {
      config::DataSource source;
      source.format = words[0];
      source.sequence_length = std::stoll(words[1]);
      source.packing = words[2];
      if (words[i].find('|') == std::string::npos) {
        source.path = words[i];
      } else {
        std::istringstream parts(words[i]);
        for (std::string part; std::getline(parts, part, '|');) source.mixture.push_back({part, 1.0});
      }
      std::cout << dump(source).dump() << '\n';
    } catch (const Error& error) {
      std::cout << Json{{"error", visible(error.message())},
                        {"hint", visible(error.advice())},
                        {"kind", name_of(error.kind())}}
                       .dump()
                << '\n';
    }
  }
  return 0;
}
