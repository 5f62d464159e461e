#pragma once

#include <memory>
#include <vector>

#include "core/config/config.hpp"
#include "data/formats/sample_source.hpp"

namespace accel {

/// The samples of several sources, of which each has the part of all that its weight is of their sum, to
/// rounding. There are so many samples that none of any source is left out: the source that is largest for
/// its weight has each of its samples once, and those of the others come again. What is left for less than
/// all of a source's samples is evenly spread over them: those of packs come in the order of their lengths.
/// Part i is of source i, and the sources follow one another, as shuffling draws from all of them.
///
/// Throws Error (kUsage) if a source has no sample, the fields of two differ, or there are too many samples.
[[nodiscard]] std::unique_ptr<SampleSource> mix(const std::vector<config::MixturePart>& parts,
                                                std::vector<std::unique_ptr<SampleSource>> sources);

}  // namespace accel
