#include <iostream>
#include <string>
#include <vector>

#include "base/host/process_state.hpp"
#include "cli/app.hpp"

int main(int argc, char** argv) {
  accel::reset_process_state();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return accel::to_int(accel::cli::run(arguments, std::cout, std::cerr));
}
