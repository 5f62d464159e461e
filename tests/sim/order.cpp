#include "order.hpp"

#include <algorithm>
#include <cstddef>

namespace accel::sim {

void Clock::join(const Clock& other) {
  if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
  for (std::size_t i = 0; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
}

void Clock::advance_to(Moment moment) {
  const auto stream = static_cast<std::size_t>(moment.stream);
  if (times_.size() <= stream) times_.resize(stream + 1);
  times_[stream] = std::max(times_[stream], moment.time);
}

std::uint64_t Clock::time_of(StreamNumber stream) const {
  const auto at = static_cast<std::size_t>(stream);
  return at < times_.size() ? times_[at] : 0;
}

Clock& Order::at(StreamNumber stream) {
  const auto index = static_cast<std::size_t>(stream);
  if (streams_.size() <= index) streams_.resize(index + 1);
  return streams_[index];
}

Moment Order::launch(StreamNumber stream) {
  Clock& clock = at(stream);
  clock.join(host_);
  const Moment moment{stream, clock.time_of(stream) + 1};
  clock.advance_to(moment);
  return moment;
}

const Clock& Order::record(StreamNumber stream) { return at(stream); }

void Order::wait(StreamNumber stream, const Clock& clock) { at(stream).join(clock); }

std::vector<Access> History::conflicts(Order& order, StreamNumber stream, bool writes) const {
  std::vector<Access> found;
  const auto add = [&](const std::vector<Access>& accesses) {
    std::copy_if(accesses.begin(), accesses.end(), std::back_inserter(found),
                 [&](const Access& access) { return !order.is_before(access.moment, stream); });
  };
  add(write_);
  if (writes) add(reads_);
  return found;
}

void History::note(const Access& access, bool writes) {
  if (writes) {
    reads_.clear();
    write_ = {access};
    return;
  }
  const auto same = std::find_if(reads_.begin(), reads_.end(), [&](const Access& read) {
    return read.moment.stream == access.moment.stream;
  });
  if (same == reads_.end()) {
    reads_.push_back(access);
  } else {
    *same = access;
  }
}

}  // namespace accel::sim
