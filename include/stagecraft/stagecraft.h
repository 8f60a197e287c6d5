#pragma once

/// All of Stagecraft. Link `stagecraft::stagecraft`.

#include "stagecraft/automatic/automatic.h"        // IWYU pragma: export
#include "stagecraft/checkpoint/checkpoint.h"      // IWYU pragma: export
#include "stagecraft/checkpoint/checkpoints.h"     // IWYU pragma: export
#include "stagecraft/model/load_operators.h"       // IWYU pragma: export
#include "stagecraft/model/pipe.h"                 // IWYU pragma: export
#include "stagecraft/runtime/launch.h"             // IWYU pragma: export
#include "stagecraft/runtime/options.h"            // IWYU pragma: export
#include "stagecraft/runtime/pipeline.h"           // IWYU pragma: export
#include "stagecraft/runtime/split.h"              // IWYU pragma: export
#include "stagecraft/runtime/world.h"              // IWYU pragma: export
#include "stagecraft/schedule.h"                   // IWYU pragma: export
#include "stagecraft/stage/from_module.h"          // IWYU pragma: export
#include "stagecraft/stage/random.h"               // IWYU pragma: export
#include "stagecraft/training/fast_step.h"         // IWYU pragma: export
#include "stagecraft/training/learning_rate.h"     // IWYU pragma: export
#include "stagecraft/training/parameter_groups.h"  // IWYU pragma: export
#include "stagecraft/watch/live_run.h"             // IWYU pragma: export
