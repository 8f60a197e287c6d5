#include <ATen/ATen.h>

#include "stagecraft/checkpoint/weight_sink.h"
#include "stagecraft/core/error.h"
#include "stagecraft/file/zip_copy.h"
#include "stagecraft/model/pipe.h"
#include "torch_types.h"
#include "weights.h"

namespace stagecraft {
namespace {

/// Puts weights into a copy of the archive that the program came from.
class ProgramSink : public WeightSink {
 public:
  ProgramSink(const ZipArchive& archive, const graph::Program& program, const std::string& path)
      : path_(path), copy_(archive, path) {
    for (const graph::Input& input : program.inputs) {
      if (!input.is_loaded()) continue;
      stored_[input.name] = &input.stored;
      for (const std::string& other : input.other_names) stored_[other] = &input.stored;
    }
  }

  void write(const std::string& name, const at::Tensor& tensor) override {
    const auto found = stored_.find(name);
    if (found == stored_.end() || tensor.sizes() != at::IntArrayRef(found->second->sizes)) {
      throw InvalidArgument("cannot save " + path_ + ": '" + name +
                            "' of the pipeline is none of the program's: save a pipeline of this model");
    }
    const graph::StoredTensor& stored = *found->second;
    const at::Tensor own = tensor.to(scalar_type(stored.element)).contiguous();
    const std::int64_t width = graph::bytes_of(stored.element);
    const Extent extent = extent_of(stored);
    // Between the elements of a tensor that is not contiguous there may be those of others.
    at::Tensor flat = at::empty({extent.end - extent.begin}, own.options());
    const auto begin = static_cast<std::uint64_t>(extent.begin * width);
    if (flat.numel() == 0) return;
    if (flat.numel() == own.numel()) {
      flat.as_strided(stored.sizes, stored.strides).copy_(own);
    } else {
      copy_.read(stored.record, begin, flat.mutable_data_ptr(), flat.nbytes());
      flat.as_strided(stored.sizes, stored.strides).copy_(own);
    }
    copy_.write(stored.record, begin, flat.const_data_ptr(), flat.nbytes());
  }

  void commit() override { copy_.commit(); }

 private:
  std::string path_;
  ZipCopy copy_;
  std::map<std::string, const graph::StoredTensor*> stored_;  // by every name
};

}  // namespace

void Pipe::save(const std::string& path, const Pipeline& pipeline) const {
  give_weights(pipeline.world(), pipeline, path,
               [&] { return std::make_unique<ProgramSink>(*archive_, *program_, path); });
}

}  // namespace stagecraft
