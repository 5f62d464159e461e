#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ckpt/io/summed_file.hpp"
#include "core/config/config.hpp"

namespace accel::train {

/// Replaces the sharded model or optimizer in `directory`/`part` by the form that `type` stands for, in
/// `directory`, under Accelerate's names: pytorch_model_fsdp.bin, or pytorch_model_fsdp_rank<R>.bin for each
/// of `ranks`. Returns the new files. Memory does not grow with the tensors. A model's tensors that
/// `tied` names (SaveJob::tied) share their bytes. Nothing is done and no file
/// returned if the form has nothing else for the part: an optimizer is sharded in the local form, too, and
/// what each rank has for itself is in any form.
std::vector<ckpt::FileSummary> convert_part(const std::filesystem::path& directory, const std::string& part,
                                            config::StateDictType type, int ranks,
                                            const std::map<std::string, std::string>& tied);

/// Writes the model of `checkpoint` as safetensors into `output`, in place of what an earlier call wrote,
/// with copies of the files `assets`. An adapter gets the file name of PEFT.
void export_safetensors(const std::filesystem::path& checkpoint, const std::filesystem::path& output,
                        std::vector<std::filesystem::path> assets, bool is_adapter);

}  // namespace accel::train
