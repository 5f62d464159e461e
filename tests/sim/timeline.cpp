#include "timeline.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace accel::sim {
namespace {

/// The track of the host's main thread in a trace; other threads have higher numbers, and streams have
/// theirs.
constexpr StreamNumber kHostTrack = 9999;

std::string thread_name() {
  char name[32] = "";
  ::pthread_getname_np(::pthread_self(), name, sizeof(name));
  return name;
}

constexpr double kMicroseconds = 1e6;

}  // namespace

bool is_training_thread() { return ::gettid() == ::getpid() || thread_name().starts_with("pt_autograd"); }

Speeds Speeds::from_environment() {
  Speeds speeds;
  const char* const text = std::getenv("ACCEL_SIM_SPEEDS");
  std::string_view rest = text == nullptr ? "" : text;
  const std::pair<std::string_view, double*> names[] = {{"matrix_flops_8", &speeds.matrix_flops_8},
                                                        {"matrix_flops_16", &speeds.matrix_flops_16},
                                                        {"matrix_flops_32", &speeds.matrix_flops_32},
                                                        {"memory_bytes", &speeds.memory_bytes},
                                                        {"host_bytes", &speeds.host_bytes},
                                                        {"link_bytes", &speeds.link_bytes},
                                                        {"kernel_s", &speeds.kernel_s},
                                                        {"collective_s", &speeds.collective_s},
                                                        {"launch_s", &speeds.launch_s}};
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

Timeline::Timeline(const Speeds& speeds) : speeds_(speeds), main_{kHostTrack, 0} {
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

Timeline::Thread& Timeline::host() {
  if (is_training_thread()) return main_;
  thread_local Thread other;
  if (other.track == 0) {
    other = {kHostTrack + ++threads_, main_.now};
    name_stream(other.track, "host, thread " + thread_name());
  }
  return other;
}

Timeline::Lane& Timeline::lane(StreamNumber stream) {
  const auto index = static_cast<std::size_t>(stream);
  if (lanes_.size() <= index) lanes_.resize(index + 1);
  return lanes_[index];
}

void Timeline::launch(StreamNumber stream, const std::string& name, Seconds seconds, std::size_t bytes) {
  Lane& its = lane(stream);
  const Seconds possible = std::max(its.end, host().now);
  const Seconds begin = std::max(possible, its.ready);
  if (begin > possible) write("wait for " + its.cause, stream, possible, begin, 0);
  its.end = begin + seconds;
  write(name, stream, begin, its.end, bytes);
  host().now += speeds_.launch_s;
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
  host().now += speeds_.launch_s;
  return std::max(host().now, end_of(current));
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
  Thread& thread = host();
  const Seconds until = std::max(thread.now, time);
  write("host sync: " + cause, thread.track, thread.now, until, 0);
  thread.now = until;
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
