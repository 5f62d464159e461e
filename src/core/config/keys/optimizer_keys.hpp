#pragma once

#include <array>
#include <string>

#include "core/config/keys/keys.hpp"

namespace accel::config {

// The keys of training.optimizer and training.lr_scheduler, a part of the table of training_keys.cpp.

template <auto... Members>
constexpr Member optimizer_member = member<&Config::training, &TrainingConfig::optimizer, Members...>;
template <auto Option>
constexpr Member option = optimizer_member<&OptimizerConfig::options, Option>;
template <auto... Members>
constexpr Member schedule = member<&Config::training, &TrainingConfig::lr_scheduler, Members...>;
template <auto Member>
constexpr auto plateau = schedule<&SchedulerConfig::plateau, Member>;

inline constexpr char kPolynomial[] = "polynomial";
inline constexpr char kInverseSqrt[] = "inverse_sqrt";
inline constexpr char kCosineWarmup[] = "cosine_warmup_with_min_lr";
inline constexpr char kStable[] = "warmup_stable_decay";
inline constexpr char kGreedy[] = "greedy";

constexpr Idle kNoStep = {"the schedule does not follow the step", [](const Config& config) {
                            const SchedulerConfig& schedule = config.training->lr_scheduler;
                            return schedule.type == "constant" || schedule.follows_held_out_loss();
                          }};

constexpr Idle kNoEnd = {"the schedule has no end", [](const Config& config) {
                           const std::string& type = config.training->lr_scheduler.type;
                           return kNoStep.applies(config) || type == "constant_with_warmup" ||
                                  type == kInverseSqrt;
                         }};
constexpr Idle kNoCosine = {"the schedule has no cosine", [](const Config& config) {
                              const SchedulerConfig& schedule = config.training->lr_scheduler;
                              return !schedule.type.starts_with("cosine") &&
                                     (schedule.type != kStable || schedule.decay_type != "cosine");
                            }};

/// Why a key of one schedule has no effect on another.
template <const char* Schedule>
constexpr Idle kOnly = {"the schedule has no such option",
                        [](const Config& config) { return config.training->lr_scheduler.type != Schedule; }};

/// Why a key of the schedules that follow the held-out loss has no effect on the others.
constexpr Idle kNoHeldOut = {"the schedule has no such option", [](const Config& config) {
                               return !config.training->lr_scheduler.follows_held_out_loss();
                             }};

/// Why an option has no effect on an optimizer that does not have it.
template <auto Option>
constexpr Idle kNoOption = {"the optimizer has no such option", [](const Config& config) {
                              return !(config.training->optimizer.options.*Option).has_value();
                            }};

constexpr auto kOptimizerKeys = std::to_array<Key>({
    {.path = "training.optimizer.type",
     .help = "The optimizer. muon is AdamW for what is no matrix",
     .member = optimizer_member<&OptimizerConfig::type>,
     .choices = kOptimizerNames},
    {.path = "training.optimizer.lr",
     .help = "The learning rate",
     .member = optimizer_member<&OptimizerConfig::lr>,
     .min = 0},
    {.path = "training.optimizer.betas",
     .help = "Two numbers, as in torch.optim.AdamW; with muon those of its AdamW",
     .member = option<&OptimizerOptions::betas>,
     .min = 0,
     .below = 1,
     .idle = kNoOption<&OptimizerOptions::betas>,
     .standard = "[0.9, 0.999], and [0.9, 0.99] with lion"},
    {.path = "training.optimizer.eps",
     .help = "As in torch.optim; with muon that of its AdamW, with adafactor the first of torch's two",
     .member = option<&OptimizerOptions::eps>,
     .min = 0,
     .idle = kNoOption<&OptimizerOptions::eps>,
     .standard = "1e-8, with adagrad 1e-10, and with adafactor the float32 epsilon"},
    {.path = "training.optimizer.weight_decay",
     .help = "As in torch.optim",
     .member = option<&OptimizerOptions::weight_decay>,
     .min = 0,
     .idle = kNoOption<&OptimizerOptions::weight_decay>,
     .standard = "0.01 with adamw and adamw8bit, 0.1 with muon, and 0 with the others"},
    {.path = "training.optimizer.momentum",
     .help = "As in torch.optim",
     .member = option<&OptimizerOptions::momentum>,
     .min = 0,
     .idle = kNoOption<&OptimizerOptions::momentum>,
     .standard = "0.95 with muon, and 0 with sgd and rmsprop"},
    {.path = "training.optimizer.dampening",
     .help = "As in torch.optim.SGD",
     .member = option<&OptimizerOptions::dampening>,
     .idle = kNoOption<&OptimizerOptions::dampening>,
     .standard = "0"},
    {.path = "training.optimizer.nesterov",
     .help = "Momentum of Nesterov, as in torch.optim",
     .member = option<&OptimizerOptions::nesterov>,
     .idle = kNoOption<&OptimizerOptions::nesterov>,
     .standard = "true with muon, and false with sgd"},
    {.path = "training.optimizer.amsgrad",
     .help = "As in torch.optim.AdamW",
     .member = option<&OptimizerOptions::amsgrad>,
     .idle = kNoOption<&OptimizerOptions::amsgrad>,
     .standard = "false"},
    {.path = "training.optimizer.alpha",
     .help = "As in torch.optim.RMSprop",
     .member = option<&OptimizerOptions::alpha>,
     .min = 0,
     .idle = kNoOption<&OptimizerOptions::alpha>,
     .standard = "0.99"},
    {.path = "training.optimizer.centered",
     .help = "As in torch.optim.RMSprop",
     .member = option<&OptimizerOptions::centered>,
     .idle = kNoOption<&OptimizerOptions::centered>,
     .standard = "false"},
    {.path = "training.optimizer.lr_decay",
     .help = "As in torch.optim.Adagrad",
     .member = option<&OptimizerOptions::lr_decay>,
     .min = 0,
     .idle = kNoOption<&OptimizerOptions::lr_decay>,
     .standard = "0"},
    {.path = "training.optimizer.initial_accumulator_value",
     .help = "As in torch.optim.Adagrad",
     .member = option<&OptimizerOptions::initial_accumulator_value>,
     .min = 0,
     .idle = kNoOption<&OptimizerOptions::initial_accumulator_value>,
     .standard = "0"},
    {.path = "training.optimizer.eps2",
     .help = "The second eps of torch.optim.Adafactor: the least root mean square of a parameter",
     .member = option<&OptimizerOptions::eps2>,
     .min = 0,
     .idle = kNoOption<&OptimizerOptions::eps2>,
     .standard = "1e-3"},
    {.path = "training.optimizer.beta2_decay",
     .help = "As in torch.optim.Adafactor",
     .member = option<&OptimizerOptions::beta2_decay>,
     .max = 0,
     .idle = kNoOption<&OptimizerOptions::beta2_decay>,
     .standard = "-0.8"},
    {.path = "training.optimizer.d",
     .help = "The clipping threshold of torch.optim.Adafactor",
     .member = option<&OptimizerOptions::d>,
     .min = 1,
     .idle = kNoOption<&OptimizerOptions::d>,
     .standard = "1"},
    {.path = "training.optimizer.adjust_lr_fn",
     .help = "How muon's learning rate depends on the shape of a matrix, as in torch.optim.Muon",
     .member = option<&OptimizerOptions::adjust_lr_fn>,
     .choices = "original|match_rms_adamw",
     .idle = {"the optimizer has no such option",
              [](const Config& config) { return config.training->optimizer.options.adjust_lr_fn.empty(); }},
     .standard = "original"},
    {.path = "training.optimizer.no_decay",
     .help = "Parameters whose name contains one of these texts get no weight decay",
     .member = optimizer_member<&OptimizerConfig::no_decay>},
    {.path = "training.optimizer.groups",
     .help = "Parameters that are trained otherwise: a list of sections with match, a regular expression for "
             "names, and lr, weight_decay, frozen or optimizer. The first section that matches counts",
     .member = optimizer_member<&OptimizerConfig::groups>},

    {.path = "training.lr_scheduler.type",
     .help = "How the learning rate follows the step, under the names of transformers",
     .member = schedule<&SchedulerConfig::type>,
     .choices =
         "constant|constant_with_warmup|linear|cosine|cosine_with_restarts|polynomial|inverse_sqrt|"
         "cosine_with_min_lr|cosine_warmup_with_min_lr|warmup_stable_decay|reduce_lr_on_plateau|greedy"},
    {.path = "training.lr_scheduler.warmup_steps",
     .help = "Steps in which the learning rate rises to training.optimizer.lr",
     .member = schedule<&SchedulerConfig::warmup_steps>,
     .min = 0,
     .idle = kNoStep},
    {.path = "training.lr_scheduler.min_lr_ratio",
     .help = "The least learning rate as a part of training.optimizer.lr",
     .member = schedule<&SchedulerConfig::min_lr_ratio>,
     .min = 0,
     .below = 1},
    // The length of the schedule is compared.
    {.path = "training.lr_scheduler.total_steps",
     .help = "The step at which the schedule ends",
     .member = schedule<&SchedulerConfig::total_steps>,
     .min = 0,
     .idle = kNoEnd,
     .standard = "training.max_steps",
     .traits = kNoNumbers},
    {.path = "training.lr_scheduler.num_cycles",
     .help = "Waves of a cosine. With cosine_with_restarts: the number of cycles",
     .member = schedule<&SchedulerConfig::num_cycles>,
     .above = 0,
     .idle = kNoCosine,
     .standard = "0.5, and 1 with cosine_with_restarts"},
    {.path = "training.lr_scheduler.lr_end",
     .help = "With polynomial: the last learning rate",
     .member = schedule<&SchedulerConfig::lr_end>,
     .min = 0,
     .idle = kOnly<kPolynomial>},
    {.path = "training.lr_scheduler.power",
     .help = "With polynomial: the power",
     .member = schedule<&SchedulerConfig::power>,
     .above = 0,
     .idle = kOnly<kPolynomial>},
    {.path = "training.lr_scheduler.timescale",
     .help = "With inverse_sqrt: the steps in which the rate falls to its half, three times over",
     .member = schedule<&SchedulerConfig::timescale>,
     .min = 0,
     .idle = kOnly<kInverseSqrt>,
     .standard = "warmup_steps, or 10000 without a warm-up"},
    {.path = "training.lr_scheduler.warmup_lr_ratio",
     .help = "With cosine_warmup_with_min_lr: the first learning rate as a part of training.optimizer.lr",
     .member = schedule<&SchedulerConfig::warmup_lr_ratio>,
     .min = 0,
     .max = 1,
     .idle = kOnly<kCosineWarmup>},
    {.path = "training.lr_scheduler.decay_steps",
     .help = "With warmup_stable_decay: the last steps, in which the rate falls",
     .member = schedule<&SchedulerConfig::decay_steps>,
     .min = 0,
     .idle = kOnly<kStable>},
    {.path = "training.lr_scheduler.warmup_type",
     .help = "With warmup_stable_decay: the form of the warm-up",
     .member = schedule<&SchedulerConfig::warmup_type>,
     .choices = "linear|cosine|1-sqrt",
     .idle = kOnly<kStable>},
    {.path = "training.lr_scheduler.decay_type",
     .help = "With warmup_stable_decay: the form of the decay",
     .member = schedule<&SchedulerConfig::decay_type>,
     .choices = "linear|cosine|1-sqrt",
     .idle = kOnly<kStable>},
    {.path = "training.lr_scheduler.factor",
     .help =
         "With reduce_lr_on_plateau and greedy: what the rate is multiplied by, or with greedy divided by",
     .member = plateau<&PlateauConfig::factor>,
     .above = 0,
     .below = 1,
     .idle = kNoHeldOut,
     .standard = "0.1, and 0.95 with greedy"},
    {.path = "training.lr_scheduler.patience",
     .help = "With reduce_lr_on_plateau and greedy: evaluations without a lower held-out loss that are "
             "waited for; with greedy also those with one",
     .member = plateau<&PlateauConfig::patience>,
     .min = 0,
     .idle = kNoHeldOut},
    {.path = "training.lr_scheduler.threshold",
     .help = "With reduce_lr_on_plateau and greedy: how much lower a loss must be to count",
     .member = plateau<&PlateauConfig::threshold>,
     .min = 0,
     .idle = kNoHeldOut,
     .standard = "1e-4, and 1e-6 with greedy"},
    {.path = "training.lr_scheduler.threshold_mode",
     .help = "With reduce_lr_on_plateau and greedy: whether the threshold is a part of the loss",
     .member = plateau<&PlateauConfig::threshold_mode>,
     .choices = "rel|abs",
     .idle = kNoHeldOut,
     .standard = "rel, and abs with greedy"},
    {.path = "training.lr_scheduler.cooldown",
     .help = "With reduce_lr_on_plateau and greedy: evaluations after a fall of the rate that do not count",
     .member = plateau<&PlateauConfig::cooldown>,
     .min = 0,
     .idle = kNoHeldOut},
    {.path = "training.lr_scheduler.min_lr",
     .help = "With reduce_lr_on_plateau and greedy: the least learning rate",
     .member = plateau<&PlateauConfig::min_lr>,
     .min = 0,
     .idle = kNoHeldOut,
     .standard = "0, and 1e-3 with greedy"},
    {.path = "training.lr_scheduler.max_lr",
     .help = "With greedy: the greatest learning rate",
     .member = plateau<&PlateauConfig::max_lr>,
     .min = 0,
     .idle = kOnly<kGreedy>},
    {.path = "training.lr_scheduler.warmup",
     .help = "With greedy: evaluations after a rise of the rate that do not count",
     .member = plateau<&PlateauConfig::warmup>,
     .min = 0,
     .idle = kOnly<kGreedy>},
    {.path = "training.lr_scheduler.reset_start",
     .help = "With greedy: falls at the least rate after which the schedule begins anew",
     .member = plateau<&PlateauConfig::reset_start>,
     .min = 1,
     .idle = kOnly<kGreedy>},
});

}  // namespace accel::config
