#include "ckpt/diff/diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace accel::ckpt {
namespace {

// A thread takes this much of a tensor at a time. It is small enough for all threads to end at about the same
// time, and large enough for the lock to cost little.
constexpr std::uint64_t kTaskBytes = std::uint64_t{32} << 20;

// Elements [begin, end) of a pair of tensors, to be compared by one thread.
struct Task {
  std::size_t pair = 0;
  std::size_t part = 0;  // The number of the task among those of its pair.
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::shared_ptr<const StoredTensor> a;
  std::shared_ptr<const StoredTensor> b;
};

// Compares the pairs of a plan on several threads.
class Comparison {
 public:
  Comparison(Checkpoint& a, Checkpoint& b, const DiffPlan& plan, const DiffOptions& options,
             Progress& progress)
      : a_(a), b_(b), plan_(plan), options_(options), progress_(progress), found_(plan.tensors.size()) {}

  // The differences, parallel to the tensors of the plan.
  std::vector<Difference> run() {
    {
      std::vector<std::jthread> others;
      for (unsigned i = 1; i < options_.threads; ++i) others.emplace_back([this] { work(); });
      work();
    }
    if (failure_) std::rethrow_exception(failure_);
    // In the order of the elements, so that sums have the same bits whichever thread is first.
    std::vector<Difference> differences(found_.size());
    for (std::size_t pair = 0; pair < found_.size(); ++pair) {
      for (const Difference& part : found_[pair]) differences[pair].add(part);
    }
    return differences;
  }

 private:
  void work() {
    try {
      TensorComparer comparer(a_.directory(), b_.directory(), [this](std::uint64_t bytes) {
        const std::lock_guard lock(mutex_);
        progress_.add(bytes);
      });
      while (const std::optional<Task> task = take()) {
        const Difference found =
            comparer.compare_range(*task->a, *task->b, task->begin, task->end, options_.tolerance);
        const std::lock_guard lock(mutex_);
        found_[task->pair][task->part] = found;
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      pair_ = plan_.tensors.size();
      if (!failure_) failure_ = std::current_exception();
    }
  }

  std::optional<Task> take() {
    const std::lock_guard lock(mutex_);
    while (pair_ < plan_.tensors.size() && element_ == numel_) open_next();
    if (pair_ == plan_.tensors.size()) return std::nullopt;
    const std::uint64_t item = std::max(item_bytes(stored_a_->dtype), item_bytes(stored_b_->dtype));
    const std::int64_t end = std::min(numel_, element_ + static_cast<std::int64_t>(kTaskBytes / item));
    found_[pair_].emplace_back();
    return Task{pair_, found_[pair_].size() - 1, std::exchange(element_, end), end, stored_a_, stored_b_};
  }

  // Goes on to the next pair; the caller holds mutex_, since one thread at a time may use a Checkpoint.
  void open_next() {
    pair_ = opened_++;
    element_ = numel_ = 0;
    if (pair_ == plan_.tensors.size()) return;
    const DiffPair& pair = plan_.tensors[pair_];
    const Dims& shape = a_.tensors()[pair.a].shape;
    if (shape != b_.tensors()[pair.b].shape) return;
    stored_a_ = std::make_shared<const StoredTensor>(a_.locate(pair.a));
    stored_b_ = std::make_shared<const StoredTensor>(b_.locate(pair.b));
    numel_ = checked_numel(shape);
  }

  Checkpoint& a_;
  Checkpoint& b_;
  const DiffPlan& plan_;
  const DiffOptions& options_;
  Progress& progress_;
  std::mutex mutex_;
  std::vector<std::vector<Difference>> found_;  // For each pair, that of each of its tasks.
  std::exception_ptr failure_;
  std::size_t opened_ = 0;    // The number of pairs that have been opened.
  std::size_t pair_ = 0;      // The pair that was opened last.
  std::int64_t numel_ = 0;    // The number of elements of the pair that was opened last.
  std::int64_t element_ = 0;  // How many of these elements have been handed out.
  std::shared_ptr<const StoredTensor> stored_a_;
  std::shared_ptr<const StoredTensor> stored_b_;
};

// Whether `a` comes before `b`.
bool is_larger(const TensorDifference& a, const TensorDifference& b) {
  if (a.other_shape() || b.other_shape()) return a.other_shape() && !b.other_shape();
  const double x = a.values.largest;
  const double y = b.values.largest;
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && !std::isnan(y);
  return x > y;
}

std::vector<UnpairedTensor> unpaired(const Checkpoint& checkpoint, const std::vector<DiffEntry>& entries) {
  std::vector<UnpairedTensor> tensors;
  tensors.reserve(entries.size());
  for (const DiffEntry& entry : entries) {
    const TensorEntry& tensor = checkpoint.tensors()[entry.index];
    tensors.push_back({entry.name, tensor.dtype, tensor.shape});
  }
  return tensors;
}

std::vector<ObjectDifference> diff_objects(Checkpoint& a, Checkpoint& b, const DiffPlan& plan) {
  std::vector<ObjectDifference> found;
  for (const DiffPair& pair : plan.objects) {
    const pickle::Value value_a = a.read_object(pair.a);
    const pickle::Value value_b = b.read_object(pair.b);
    if (!same(value_a, value_b)) found.push_back({pair.name, describe(value_a), describe(value_b)});
  }
  for (const DiffEntry& entry : plan.objects_only_a) {
    found.push_back({entry.name, describe(a.read_object(entry.index)), std::nullopt});
  }
  for (const DiffEntry& entry : plan.objects_only_b) {
    found.push_back({entry.name, std::nullopt, describe(b.read_object(entry.index))});
  }
  return found;
}

}  // namespace

Dims TensorDifference::first_position() const {
  Dims position(shape_a.size());
  std::int64_t rest = values.first;
  for (std::size_t d = position.size(); d-- > 0;) {
    position[d] = rest % shape_a[d];
    rest /= shape_a[d];
  }
  return position;
}

double TensorDifference::rms() const { return values.rms(checked_numel(shape_a)); }

std::uint64_t bytes_to_compare(const Checkpoint& a, const Checkpoint& b, const DiffPlan& plan) {
  std::uint64_t bytes = 0;
  for (const DiffPair& pair : plan.tensors) {
    const TensorEntry& entry = a.tensors()[pair.a];
    if (entry.shape != b.tensors()[pair.b].shape) continue;
    bytes = checked_add(bytes, checked_nbytes(entry.shape, item_bytes(entry.dtype)));
  }
  return bytes;
}

DiffResult diff_checkpoints(Checkpoint& a, Checkpoint& b, const DiffPlan& plan, const DiffOptions& options,
                            Progress& progress) {
  DiffResult result;
  const std::vector<Difference> values = Comparison(a, b, plan, options, progress).run();
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorEntry& entry_a = a.tensors()[plan.tensors[i].a];
    const TensorEntry& entry_b = b.tensors()[plan.tensors[i].b];
    TensorDifference difference{plan.tensors[i].name, entry_a.dtype, entry_b.dtype,
                                entry_a.shape,        entry_b.shape, values[i]};
    if (!difference.other_shape()) ++result.compared_tensors;
    const bool dtype_counts = difference.other_dtype() && !options.ignore_dtype;
    if (difference.other_shape() || dtype_counts || values[i].elements > 0) {
      result.tensors.push_back(std::move(difference));
    }
  }
  std::stable_sort(result.tensors.begin(), result.tensors.end(), is_larger);
  result.only_a = unpaired(a, plan.tensors_only_a);
  result.only_b = unpaired(b, plan.tensors_only_b);
  result.objects = diff_objects(a, b, plan);
  result.left_out_a = plan.left_out_a;
  result.left_out_b = plan.left_out_b;
  result.compared_bytes = bytes_to_compare(a, b, plan);
  result.compared_objects = plan.objects.size();
  result.paired_tensors = plan.tensors.size();
  return result;
}

}  // namespace accel::ckpt
