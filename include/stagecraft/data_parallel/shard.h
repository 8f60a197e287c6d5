#pragma once

#include "stagecraft/core/shard.h"  // IWYU pragma: export
