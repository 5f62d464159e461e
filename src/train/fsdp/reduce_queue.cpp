#include "train/fsdp/reduce_queue.hpp"

#include "train/fsdp/step_memory.hpp"

namespace accel::train {

void ReduceQueue::start(FlatBuffer& buffer) {
  if (buffer.layout().mesh.shards == 1) {
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
  for (FlatBuffer* buffer : averaging_) {
    buffer->finish_average();
    buffer->settle_gradient();
  }
  averaging_.clear();
}

void ReduceQueue::finish_oldest_reduce() {
  FlatBuffer& buffer = *reducing_.front();
  reducing_.pop_front();
  buffer.finish_reduce();
  average(buffer);
}

void ReduceQueue::average(FlatBuffer& buffer) {
  if (groups_.mesh().replicas == 1) return buffer.settle_gradient();
  buffer.start_average(groups_.replicate());
  averaging_.push_back(&buffer);
}

}  // namespace accel::train
