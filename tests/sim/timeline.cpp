#include "timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace accel::sim {
namespace {

/// The track of the host in a trace; streams have their numbers.
constexpr StreamNumber kHostTrack = 9999;

constexpr double kMicroseconds = 1e6;

}  // namespace

Speeds Speeds::from_environment() {
  Speeds speeds;
  const char* const text = std::getenv("ACCEL_SIM_SPEEDS");
  std::string_view rest = text == nullptr ? "" : text;
  const std::pair<std::string_view, double*> names[] = {
      {"matrix_flops_16", &speeds.matrix_flops_16}, {"matrix_flops_32", &speeds.matrix_flops_32},
      {"memory_bytes", &speeds.memory_bytes},       {"host_bytes", &speeds.host_bytes},
      {"link_bytes", &speeds.link_bytes},           {"kernel_s", &speeds.kernel_s},
      {"collective_s", &speeds.collective_s},       {"launch_s", &speeds.launch_s}};
  while (!rest.empty()) {
    const std::string pair(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const std::size_t equals = pair.find('=');
    const auto* const known = std::find_if(std::begin(names), std::end(names), [&](const auto& name) {
      return equals != std::string::npos && name.first == pair.substr(0, equals);
    });
    if (known == std::end(names))
      throw std::runtime_error(fmt::format("ACCEL_SIM_SPEEDS has '{}', which is no speed", pair));
    *known->second = std::stod(pair.substr(equals + 1));
  }
  return speeds;
}

Timeline::Timeline(const Speeds& speeds) : speeds_(speeds) {
  const char* const directory = std::getenv("ACCEL_SIM_TRACE");
  if (directory == nullptr || *directory == '\0') return;
  const char* const rank = std::getenv("RANK");
  std::filesystem::create_directories(directory);
  const std::filesystem::path path =
      std::filesystem::path(directory) / fmt::format("rank_{}.json", rank == nullptr ? "0" : rank);
  trace_ = std::fopen(path.c_str(), "w");
  if (trace_ == nullptr) throw std::runtime_error(fmt::format("cannot write '{}'", path.string()));
  std::fputs("[\n", trace_);
  name_stream(kHostTrack, "host");
}

Timeline::~Timeline() {
  if (trace_ != nullptr) std::fclose(trace_);
}

Timeline::Lane& Timeline::lane(StreamNumber stream) {
  const auto index = static_cast<std::size_t>(stream);
  if (lanes_.size() <= index) lanes_.resize(index + 1);
  return lanes_[index];
}

void Timeline::launch(StreamNumber stream, const std::string& name, Seconds seconds, std::size_t bytes) {
  Lane& its = lane(stream);
  const Seconds possible = std::max(its.end, host_);
  const Seconds begin = std::max(possible, its.ready);
  if (begin > possible) write("wait for " + its.cause, stream, possible, begin, 0);
  its.end = begin + seconds;
  write(name, stream, begin, its.end, bytes);
  host_ += speeds_.launch_s;
}

Seconds Timeline::end_of(StreamNumber stream) {
  const Lane& its = lane(stream);
  return std::max(its.end, its.ready);
}

void Timeline::wait(StreamNumber stream, Seconds time, const std::string& cause) {
  Lane& its = lane(stream);
  if (time <= its.ready) return;
  its.ready = time;
  its.cause = cause;
}

Seconds Timeline::enqueue(StreamNumber current) {
  host_ += speeds_.launch_s;
  return std::max(host_, end_of(current));
}

void Timeline::collective(StreamNumber stream, const std::string& name, Seconds ready, Seconds seconds,
                          std::size_t bytes) {
  Lane& its = lane(stream);
  const Seconds begin = std::max(its.end, ready);
  its.end = begin + seconds;
  its.ready = its.end;
  write(name, stream, begin, its.end, bytes);
}

void Timeline::wait_on_host(Seconds time, const std::string& cause) {
  write("host sync: " + cause, kHostTrack, host_, std::max(host_, time), 0);
  host_ = std::max(host_, time);
  // A rank ends without destructors.
  if (trace_ != nullptr) std::fflush(trace_);
}

void Timeline::name_stream(StreamNumber stream, const std::string& name) {
  if (trace_ == nullptr) return;
  fmt::print(trace_,
             "{{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 0, \"tid\": {}, \"args\": {{\"name\": "
             "\"{}\"}}}},\n",
             stream, name);
}

void Timeline::write(std::string_view name, StreamNumber track, Seconds begin, Seconds end,
                     std::size_t bytes) {
  if (trace_ == nullptr) return;
  fmt::print(trace_,
             "{{\"name\": \"{}\", \"ph\": \"X\", \"pid\": 0, \"tid\": {}, \"ts\": {:.3f}, \"dur\": {:.3f}, "
             "\"args\": {{\"bytes\": {}}}}},\n",
             name, track, begin * kMicroseconds, (end - begin) * kMicroseconds, bytes);
}

}  // namespace accel::sim
