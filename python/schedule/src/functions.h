#pragma once

#include <memory>

#include "arguments.h"
#include "simulation_report.h"
#include "stagecraft/graph/cut.h"
#include "stagecraft/plan/partition.h"
#include "stagecraft/sim/profile.h"

/// The functions of the module, and the C++ values they hand out as capsules. Arguments are positional and checked; the
/// Python side of the package gives them names and defaults.
namespace stagecraft::python {

struct ExportedModel {
  std::string path;
  graph::Program program;
};

struct CutModel {
  std::shared_ptr<const ExportedModel> model;
  graph::CutProgram cut;
};

template <>
struct CapsuleName<Schedule> {
  static constexpr const char* kName = "stagecraft.Schedule";
  static constexpr const char* kExpected = "a stagecraft.Schedule";
};
template <>
struct CapsuleName<CostFile> {
  static constexpr const char* kName = "stagecraft.Costs";
  static constexpr const char* kExpected = "stagecraft.Costs";
};
template <>
struct CapsuleName<cli::SimulationReport> {
  static constexpr const char* kName = "stagecraft.Simulation";
  static constexpr const char* kExpected = "a stagecraft.Simulation";
};
template <>
struct CapsuleName<Recording> {
  static constexpr const char* kName = "stagecraft.Recording";
  static constexpr const char* kExpected = "a stagecraft.Recording";
};
template <>
struct CapsuleName<Profile> {
  static constexpr const char* kName = "stagecraft.Profile";
  static constexpr const char* kExpected = "a stagecraft.Profile";
};
template <>
struct CapsuleName<std::shared_ptr<const ExportedModel>> {
  static constexpr const char* kName = "stagecraft.Model";
  static constexpr const char* kExpected = "a stagecraft.Model";
};
template <>
struct CapsuleName<CutModel> {
  static constexpr const char* kName = "stagecraft.Split";
  static constexpr const char* kExpected = "a stagecraft.Split";
};

/// The costs by stage; throws InvalidArgument for costs by layer.
const Costs& stage_costs(const CostFile& file);

// --- schedules (schedules.cpp) ---
Object version_text(const Arguments&);
Object listing(const Arguments&);
Object parse_action_text(const Arguments& args);
Object schedule_named(const Arguments& args);
Object schedule_from_csv(const Arguments& args);
Object schedule_read(const Arguments& args);
Object schedule_from_rows(const Arguments& args);
Object schedule_facts(const Arguments& args);
Object schedule_rows(const Arguments& args);
Object schedule_csv(const Arguments& args);
Object schedule_equal(const Arguments& args);
Object schedule_lowered(const Arguments& args);

// --- verification (checks.cpp) ---
Object verified(const Arguments& args);
Object require_valid_schedule(const Arguments& args);
Object checked(const Arguments& args);
Object step_count(const Arguments& args);
Object peak_live(const Arguments& args);

// --- pictures and files (pictures.cpp) ---
Object schedule_picture(const Arguments& args);
Object write_file(const Arguments& args);
Object read_file(const Arguments& args);

// --- costs (costs.cpp) ---
Object costs_parse(const Arguments& args);
Object costs_example(const Arguments& args);
Object costs_text(const Arguments& args);
Object costs_changed(const Arguments& args);
Object costs_slower_rank(const Arguments& args);
Object costs_slower_link(const Arguments& args);
Object costs_memory_text(const Arguments& args);

// --- simulation (simulations.cpp) ---
Object simulated(const Arguments& args);
Object simulation_facts(const Arguments& args);
Object simulation_text(const Arguments& args);
Object simulation_times(const Arguments& args);
Object simulation_memory(const Arguments& args);
Object simulation_picture(const Arguments& args);
Object compared(const Arguments& args);

// --- plans (plans.cpp) ---
Object planned(const Arguments& args);
Object smallest_limit(const Arguments& args);
Object lower_bound_of_span(const Arguments& args);

// --- recordings and profiles (recordings.cpp) ---
Object recording_parse(const Arguments& args);
Object recording_facts(const Arguments& args);
Object recording_spans(const Arguments& args);
Object recording_summary(const Arguments& args);
Object recording_picture(const Arguments& args);
Object profiled(const Arguments& args);
Object profile_facts(const Arguments& args);
Object period_predicted(const Arguments& args);

// --- exported models (models.cpp) ---
Object model_read(const Arguments& args);
Object model_facts(const Arguments& args);
Object model_text(const Arguments& args);
Object model_split(const Arguments& args);
Object split_facts(const Arguments& args);
Object split_costs(const Arguments& args);

}  // namespace stagecraft::python
