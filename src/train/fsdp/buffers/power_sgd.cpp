#include "train/fsdp/buffers/power_sgd.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <tuple>
#include <utility>

namespace accel::train {
namespace {

// Without epsilon a column of zeros becomes NaN, as in torch. Zeros would be worse: a factor of zeros stays
// zero, and the parameter would silently never be trained.
void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const std::int64_t columns = matrices.size(2);
  for (std::int64_t i = 0; i < columns; ++i) {
    at::Tensor column = matrices.narrow(2, i, 1);
    at::Tensor norm = at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, /*keepdim=*/true);
    column.div_(epsilon == 0 ? norm : norm + epsilon);
    if (i + 1 == columns) break;
    at::Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_(at::sum(column * rest, at::IntArrayRef{1}, /*keepdim=*/true) * column);
  }
}

void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b) { at::bmm_out(out, a, b); }

/// A part of a flat tensor as a batch of one matrix.
at::Tensor matrix_at(const at::Tensor& flat, std::int64_t offset, std::int64_t rows, std::int64_t columns) {
  return flat.narrow(0, offset, rows * columns).view({1, rows, columns});
}

}  // namespace

void orthogonalize(const at::Tensor& matrices, double epsilon) {
  const at::ScalarType dtype = matrices.scalar_type();
  if (matrices.size(2) <= 2 || dtype == at::kHalf || dtype == at::kBFloat16)
    return gram_schmidt(matrices, epsilon);
  matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
}

PowerSgd::PowerSgd(const FlatLayout& layout, const config::PowerSgdConfig& config,
                   std::shared_ptr<NumpyRandom> seeds)
    : config_(config), plan_(plan_low_rank(layout, config)), seeds_(std::move(seeds)) {}

at::Tensor PowerSgd::m(const LowRankMatrix& matrix) const {
  return matrix_at(gradient_, matrix.offset, matrix.rows, matrix.columns);
}

at::Tensor PowerSgd::p(const LowRankMatrix& matrix) const {
  return matrix_at(sent_, plan_.uncompressed_numel + matrix.p_offset, matrix.rows, matrix.rank);
}

at::Tensor PowerSgd::q(const LowRankMatrix& matrix) const {
  return matrix_at(qs_, matrix.q_offset, matrix.columns, matrix.rank);
}

void PowerSgd::start(Group& group, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  group_ = &group;
  gradient_ = gradient;
  if (iteration_++ < config_.start_iter) {
    gradient_.div_(group.size());
    pending_ = group.all_reduce_sum(gradient_);
    return;
  }
  if (config_.use_error_feedback) add_error();
  prepare_qs();
  sent_ = at::empty({plan_.uncompressed_numel + plan_.p_numel}, gradient_.options());
  for_uncompressed([](const at::Tensor& sent, const at::Tensor& own) { sent.copy_(own); });
  // Multiplied as in torch, for the same rounding.
  for (const LowRankMatrix& matrix : plan_.matrices) multiply(p(matrix), m(matrix), q(matrix));
  pending_ = group.all_reduce_sum(sent_);
}

void PowerSgd::finish() {
  const at::NoGradGuard no_grad;
  pending_.wait();
  if (sent_.defined()) {
    for_uncompressed(
        [this](const at::Tensor& sent, const at::Tensor& own) { own.copy_(sent.div_(group_->size())); });
    if (plan_.q_numel > 0) {
      // P needs no division, as only its directions count.
      for (const LowRankMatrix& matrix : plan_.matrices) {
        orthogonalize(p(matrix), config_.orthogonalization_epsilon);
        multiply(q(matrix), m(matrix).transpose(1, 2), p(matrix));
      }
      group_->all_reduce_sum(qs_).wait();
      qs_.div_(group_->size());
      for (const LowRankMatrix& matrix : plan_.matrices)
        multiply(m(matrix), p(matrix), q(matrix).transpose(1, 2));
    }
    // The error is what was to be sent minus what was sent.
    if (config_.use_error_feedback) error_.sub_(gradient_);
    if (!config_.warm_start) qs_.reset();
    sent_.reset();
  }
  gradient_.reset();
}

void PowerSgd::restore(State state) {
  iteration_ = state.iteration;
  error_ = std::move(state.error);
  qs_ = std::move(state.qs);
}

void PowerSgd::reset() {
  error_.reset();
  qs_.reset();
}

// The sum stays in the error, too: finish() subtracts from it what is sent.
void PowerSgd::add_error() {
  if (!error_.defined()) {
    error_ = gradient_.clone();
    return;
  }
  error_.add_(gradient_);
  gradient_.copy_(error_);
}

// The first factors come from a generator of its own: drawing from the rank's would change what dropout
// draws. It is on the CPU, as in torch.
void PowerSgd::prepare_qs() {
  constexpr std::uint32_t kSeeds = 1'000'000'000;
  at::Generator generator;
  if (!qs_.defined()) {
    qs_ = at::empty({plan_.q_numel}, gradient_.options());
    generator = at::make_generator<at::CPUGeneratorImpl>(seeds_->randint(kSeeds));
  }
  for (const LowRankMatrix& matrix : plan_.matrices) {
    if (generator.defined())
      q(matrix).copy_(at::randn({1, matrix.columns, matrix.rank}, generator, gradient_.scalar_type()));
    orthogonalize(q(matrix), config_.orthogonalization_epsilon);
  }
}

template <typename Function>
void PowerSgd::for_uncompressed(Function function) {
  std::int64_t offset = 0;
  for (const ElementRange& range : plan_.uncompressed) {
    function(sent_.narrow(0, offset, range.size()), gradient_.narrow(0, range.begin, range.size()));
    offset += range.size();
  }
}

}  // namespace accel::train
