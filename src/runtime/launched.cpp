#include "launched.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "stagecraft/core/error.h"

namespace stagecraft {
namespace {

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  [[nodiscard]] bool has(const char* name) const { return !text(name).empty(); }
  [[nodiscard]] std::string text(const char* name) const {
    const char* value = variables_(name);
    return value == nullptr ? "" : value;
  }
  /// The first of these variables that is set.
  [[nodiscard]] std::string first_of(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (has(name)) return text(name);
    }
    return {};
  }
  [[nodiscard]] int number(const char* name, int least, int most) const {
    const std::string value = text(name);
    int result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc() || end != value.data() + value.size() || result < least || result > most) {
      throw InvalidArgument(std::string("the variable ") + name + " is '" + value + "', and should be a number from " +
                            std::to_string(least) + " to " + std::to_string(most) +
                            ": start the program by a launcher that sets it, or unset it");
    }
    return result;
  }
  [[nodiscard]] int number_or(const char* name, int otherwise, int least, int most) const {
    return has(name) ? number(name, least, most) : otherwise;
  }

 private:
  const Variables& variables_;
};

constexpr int kManyRanks = 1 << 20;

/// A port that depends on the job: two jobs on a host rarely get the same.
int port_of(const std::string& job) {
  unsigned hash = 2166136261U;
  for (const char letter : job) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  return 20000 + static_cast<int>(hash % 20000U);
}

void read_ranks(const Reader& in, Launched& out, const char* rank, const char* ranks, const char* local_rank,
                const char* local_ranks) {
  out.ranks = in.number(ranks, 1, kManyRanks);
  out.rank = in.number(rank, 0, out.ranks - 1);
  out.local_ranks = in.number_or(local_ranks, 1, 1, kManyRanks);
  out.local_rank = in.number_or(local_rank, 0, 0, kManyRanks);
  if (!in.has(local_rank)) out.missing = local_rank;
}

/// Where rank 0 listens, unless the launcher says so itself.
void read_master(const Reader& in, Launched& out, const std::string& host) {
  out.host = in.has("MASTER_ADDR") ? in.text("MASTER_ADDR") : host;
  out.port = in.has("MASTER_PORT") ? in.number("MASTER_PORT", 1, 65535) : port_of(out.job);
  if (out.host.empty()) {
    throw InvalidArgument("this process is rank " + std::to_string(out.rank) + " of " + std::to_string(out.ranks) +
                          ", started by " + out.by +
                          " on several hosts, and does not know where rank 0 is: set MASTER_ADDR to "
                          "the host of rank 0, and MASTER_PORT to a free port of it");
  }
}

/// Called for the variables of torchrun, which scripts set too: a single rank that they leave to each of several
/// processes would do all of the work there.
void check_is_no_task(const Reader& in, const Launched& launched) {
  if (launched.ranks > 1 || in.has("TORCHELASTIC_RUN_ID")) return;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const int tasks = in.number_or(name, 1, 1, kManyRanks);
    if (tasks < 2) continue;
    throw InvalidArgument(std::string("WORLD_SIZE is 1, so that this process would be alone, but it is one of ") +
                          std::to_string(tasks) + " (" + name +
                          "): unset RANK and WORLD_SIZE, or set them to the number of this process and to how many "
                          "there are");
  }
}

/// Called when no launcher is found. Some of torchrun's variables say that there are others, and not where: each of
/// them would do all of the work.
void check_is_alone(const Reader& in) {
  const auto is_other_than = [&](const char* name, const char* value) {
    return in.has(name) && in.text(name) != value;
  };
  if (!is_other_than("RANK", "0") && !is_other_than("WORLD_SIZE", "1")) return;
  std::string set;
  std::string missing;
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    std::string& names = in.has(name) ? set : missing;
    names += (names.empty() ? "" : ", ") + std::string(name);
    if (in.has(name)) names += "=" + in.text(name);
  }
  throw InvalidArgument("this process seems to be one of several (" + set + "), but " + missing +
                        " is not set: start the program by torchrun, which sets all of them, or set them, or unset "
                        "those that are");
}

}  // namespace

void check_can_choose(const Launched& launched, int devices) {
  if (launched.missing.empty() || launched.ranks == 1 || devices < 2) return;
  throw InvalidArgument("rank " + std::to_string(launched.rank) + " of " + std::to_string(launched.ranks) + " sees " +
                        std::to_string(devices) + " GPUs and does not know which is its own: set " + launched.missing +
                        " to its number among the ranks of its host, or CUDA_VISIBLE_DEVICES to its GPU");
}

void prepare_cuda() {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
}

int ranks_of_mpirun(const Variables& variables) {
  int least = 0;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* value = variables(name);
    const int ranks = value == nullptr ? 0 : std::atoi(value);
    if (ranks > 0 && (least == 0 || ranks < least)) least = ranks;
  }
  // By PMIx alone, srun tells in its own way. Under mpirun in an allocation of Slurm, that counts mpirun's helpers.
  const char* tasks = variables("SLURM_STEP_NUM_TASKS");
  const bool is_by_srun = variables("PMIX_RANK") != nullptr && variables("SLURM_PROCID") != nullptr && tasks != nullptr;
  if (least == 0 && is_by_srun) least = std::atoi(tasks);
  return least;
}

void check_not_alone(int ranks_of_mpirun, int ranks) {
  if (ranks != 1 || ranks_of_mpirun < 2) return;
  throw InvalidArgument("mpirun or srun has started " + std::to_string(ranks_of_mpirun) +
                        " ranks, but MPI has found 1, this process alone: start the program by the mpirun of the MPI "
                        "that Stagecraft was built with, or unset OMPI_COMM_WORLD_SIZE, PMI_SIZE and PMIX_RANK to run "
                        "it alone");
}

std::string first_host(const std::string& list) {
  const auto bracket = list.find_first_of("[,");
  if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
  const auto end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

std::optional<Launched> launched_by(const Variables& variables) {
  const Reader in(variables);
  Launched out;
  if (in.has("RANK") && in.has("WORLD_SIZE") && in.has("MASTER_ADDR") && in.has("MASTER_PORT")) {
    out.by = "torchrun";
    read_ranks(in, out, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
    out.has_store = in.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    out.job = in.text("TORCHELASTIC_RUN_ID");  // every host counts restarts on its own
    read_master(in, out, "");
    check_is_no_task(in, out);
    return out;
  }
  // A script of sbatch has SLURM_PROCID too, but is not a task of a step.
  if (in.has("SLURM_PROCID") && in.has("SLURM_STEP_NUM_TASKS") && in.has("SLURM_STEP_NODELIST")) {
    out.by = "Slurm";
    read_ranks(in, out, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE");
    out.local_ranks = std::max(out.local_ranks, out.local_rank + 1);
    out.job = in.text("SLURM_JOB_ID") + "." + in.text("SLURM_STEP_ID");
    read_master(in, out, first_host(in.text("SLURM_STEP_NODELIST")));
    return out;
  }
  const bool is_open_mpi = in.has("OMPI_COMM_WORLD_RANK") && in.has("OMPI_COMM_WORLD_SIZE");
  if (!is_open_mpi && !(in.has("PMI_RANK") && in.has("PMI_SIZE"))) {
    check_is_alone(in);
    return std::nullopt;
  }
  out.by = "mpirun";
  if (is_open_mpi) {
    read_ranks(in, out, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
               "OMPI_COMM_WORLD_LOCAL_SIZE");
  } else {
    read_ranks(in, out, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  }
  out.job = in.first_of({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "HYDI_CONTROL_FD"});
  read_master(in, out, out.local_ranks == out.ranks ? "127.0.0.1" : "");
  return out;
}

}  // namespace stagecraft
