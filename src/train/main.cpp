#include "train/worker.hpp"

int main() { accel::train::run_worker(); }
