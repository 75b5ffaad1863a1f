// Compiled once for all files of a unit test program.
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/catch.hpp"
