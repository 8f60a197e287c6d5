#include "model_input.h"

#include <CLI/CLI.hpp>

#include "options.h"

namespace stagecraft::cli {

ModelInput::ModelInput(CLI::App& parser) {
  parser.add_option("file", file_, "Model written by torch.export.save (.pt2)")
      ->type_name(std::string(kFileType))
      ->required();
  parser.add_option("--model", model_, "The model to take, where the file holds several")->type_name("MODEL");
}

graph::Program ModelInput::read() const { return graph::read_program(ZipArchive(open_file(file_)), model_); }

}  // namespace stagecraft::cli
