// One forward and backward of an exported program, in turns with Python: each line of standard input is a number of
// repetitions, each answer the seconds they took.
//
//   export_bench MODEL.pt2 INPUT.pt THREADS

#include <torch/serialize.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>

#include "stagecraft/core/measurement.h"
#include "stagecraft/model/pipe.h"

namespace sc = stagecraft;

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: export_bench MODEL.pt2 INPUT.pt THREADS\n";
    return 2;
  }
  at::set_num_threads(std::stoi(argv[3]));
  std::ifstream file(argv[2], std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const sc::ValueList arguments = {torch::pickle_load(bytes).toTensor()};
  const sc::Pipe pipe(argv[1]);
  const sc::Stage stage = pipe.build_stage(0);
  const sc::ValueDict no_keywords;
  for (int repetitions = 0; std::cin >> repetitions;) {
    const double start = sc::seconds_now();
    for (int i = 0; i < repetitions; ++i) {
      const sc::Value output = stage.forward({sc::StageId(0), sc::MicrobatchId(0), arguments, no_keywords});
      output.tensor().sum().backward();
      for (const auto& [name, parameter] : stage.parameters()) parameter.mutable_grad() = at::Tensor();
    }
    std::cout << sc::seconds_now() - start << std::endl;
  }
}
