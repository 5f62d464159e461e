#include "train/loop/evaluate_only.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files/atomic_file.hpp"
#include "base/log.hpp"
#include "ckpt/io/read_sums.hpp"
#include "train/checkpoint/check_resumed.hpp"
#include "train/checkpoint/frozen_hash.hpp"
#include "train/checkpoint/load.hpp"
#include "train/checkpoint/load_foreign.hpp"
#include "train/fsdp/sharded_model.hpp"
#include "train/loop/agreement.hpp"
#include "train/loop/batches.hpp"
#include "train/loop/evaluate.hpp"
#include "train/loop/model_loss.hpp"
#include "train/loop/model_options.hpp"
#include "train/loop/open_model.hpp"

namespace accel::train {

void evaluate_only(const config::Config& config, at::Device device, Group& group, const MeshGroups& groups) {
  const config::TrainingConfig& training = *config.training;
  OpenedModel opened = open_model(training.model, group);
  std::vector<HeldOutSamples> sets = open_held_out(training, opened.input_dtypes);
  Samples& data = sets.at(0).samples;  // `accel evaluate` asks for one set at a time.
  data.set_vocabularies(known_tokens(opened.file, training.model));
  const Labels labels = labels_for(training.model, opened.file.accel_json());
  if (training.data.check_labels) data.require_meaning_of_labels(labels);
  ckpt::ReadSums sums;
  ShardedModel model(std::move(opened.file), sharding_options(config, opened.weights, &sums), device, groups);
  require_head(training.model, model.head());
  const std::filesystem::path& checkpoint = training.checkpoint.resume_from;
  if (checkpoint.empty()) {
    check_sums_of_weights(training, opened.weights, sums, group);
  } else if (!is_foreign(checkpoint)) {
    const ckpt::RunState state = restore_what_ranks_have(checkpoint, model, &sums);
    check_resumed(checkpoint, sums, config::VerifyOnResume::kAuto, group);
    require_frozen(checkpoint, state, model, group);
  }
  require_agreement(group, config, model.structure(),
                    fmt::format("{}, {:08x}", data.source().size_text(), data.source().fingerprint()));
  const Evaluation evaluation = evaluate(model, training, data, labels, device).value();
  if (group.rank() != 0) return;
  // JSON has no infinity.
  const auto number = [](double value) -> nlohmann::ordered_json {
    if (std::isfinite(value)) return value;
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  };
  nlohmann::ordered_json result = {{"loss", number(evaluation.loss)}, {"samples", data.source().size()}};
  if (evaluation.accuracy) {
    result["perplexity"] = number(*evaluation.perplexity);
    result["accuracy"] = number(*evaluation.accuracy);
  }
  write_file_atomically(training.output_dir / kEvaluationFile, result.dump() + "\n");
}

}  // namespace accel::train
