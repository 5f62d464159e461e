#include "train/fsdp/buffers/reduce_queue.hpp"

#include "plan/memory/step_memory.hpp"

namespace accel::train {

void ReduceQueue::start(FlatBuffer& buffer) {
  if (!buffer.is_spread_over(groups_.shard())) {
    buffer.start_reduce(groups_.shard());
    average(buffer);
    return;
  }
  while (reducing_.size() >= kMaxReducing) finish_oldest_reduce();
  buffer.start_reduce(groups_.shard());
  reducing_.push_back(&buffer);
}

void ReduceQueue::finish() {
  while (!reducing_.empty()) finish_oldest_reduce();
  while (!averaging_.empty()) finish_oldest_average();
  for (FlatBuffer* buffer : storing_) buffer->release_reduced();
  storing_.clear();
}

void ReduceQueue::finish_oldest_reduce() {
  FlatBuffer& buffer = *reducing_.front();
  reducing_.pop_front();
  buffer.finish_reduce();
  average(buffer);
}

Group& ReduceQueue::averaging_group(const FlatBuffer& buffer) const {
  return buffer.layout().is_replicated() ? groups_.mean() : groups_.replicate();
}

bool ReduceQueue::must_wait(const FlatBuffer& buffer) const {
  if (buffer.comm_hook() != nullptr) return averaging_.size() >= kMaxHooked;
  return buffer.is_offloaded() && averaging_.size() >= kMaxStoring;
}

void ReduceQueue::average(FlatBuffer& buffer) {
  Group& group = averaging_group(buffer);
  if (group.is_alone()) return finalize(buffer);
  while (must_wait(buffer)) finish_oldest_average();
  buffer.start_average(group);
  averaging_.push_back(&buffer);
}

void ReduceQueue::finish_oldest_average() {
  FlatBuffer& buffer = *averaging_.front();
  averaging_.pop_front();
  buffer.finish_average();
  finalize(buffer);
}

void ReduceQueue::finalize(FlatBuffer& buffer) {
  buffer.finalize_gradient();
  if (!buffer.is_offloaded()) return;
  storing_.push_back(&buffer);
  while (storing_.size() > kMaxStoring) {
    storing_.front()->release_reduced();
    storing_.pop_front();
  }
}

}  // namespace accel::train
