#pragma once

/// The torch-free half of Stagecraft: schedules as data. Link `stagecraft::schedule`.

#include "stagecraft/core/error.h"          // IWYU pragma: export
#include "stagecraft/core/identity.h"       // IWYU pragma: export
#include "stagecraft/passes/pass.h"         // IWYU pragma: export
#include "stagecraft/passes/verify.h"       // IWYU pragma: export
#include "stagecraft/plan/exact.h"          // IWYU pragma: export
#include "stagecraft/plan/partition.h"      // IWYU pragma: export
#include "stagecraft/plan/planner.h"        // IWYU pragma: export
#include "stagecraft/schedule/action.h"     // IWYU pragma: export
#include "stagecraft/schedule/csv.h"        // IWYU pragma: export
#include "stagecraft/schedule/generator.h"  // IWYU pragma: export
#include "stagecraft/sim/cost_file.h"       // IWYU pragma: export
#include "stagecraft/sim/critical_path.h"   // IWYU pragma: export
#include "stagecraft/sim/memory_model.h"    // IWYU pragma: export
#include "stagecraft/sim/profile.h"         // IWYU pragma: export
#include "stagecraft/sim/simulator.h"       // IWYU pragma: export
#include "stagecraft/sim/slack.h"           // IWYU pragma: export
#include "stagecraft/sim/step_simulator.h"  // IWYU pragma: export
#include "stagecraft/sim/what_if.h"         // IWYU pragma: export
#include "stagecraft/view/render.h"         // IWYU pragma: export
#include "stagecraft/view/timeline.h"       // IWYU pragma: export
