// Compiled once for all files of a target: the headers of the standard library that most include.
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>
