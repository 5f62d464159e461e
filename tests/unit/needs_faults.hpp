#pragma once

#include <gtest/gtest.h>

#include "base/files/fault.hpp"

/// Skips the test in a build without fault points.
#define ACCEL_NEEDS_FAULTS() \
  if (!::accel::fault::is_built_in()) GTEST_SKIP() << "needs a build with -Dfaults=true"
