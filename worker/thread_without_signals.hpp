// Threads of the library in somebody else's process.
#pragma once

#include "common/memory/thread_without_signals.hpp"
