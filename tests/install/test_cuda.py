"""How Stagecraft is configured with a LibTorch that has CUDA: with a toolkit, with the wheels of CUDA alone, and without either."""

import os
import pathlib
import subprocess
import tempfile
import unittest

CMAKE = os.environ.get("CMAKE", "cmake")
HERE = pathlib.Path(__file__).resolve().parent
FUNCTIONS = HERE.parent.parent / "cmake/cuda_of_torch.cmake"


class Cuda(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)

    def write(self, path, text=""):
        path = self.scratch / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def wheel(self, cuda, packages="packages"):
        """The folder of the CMake package of a torch wheel."""
        self.write(f"{packages}/torch/share/cmake/Caffe2/Caffe2Config.cmake", f"if({cuda})\n  set(CAFFE2_USE_CUDA {cuda})\nendif()\n")
        return self.write(f"{packages}/torch/share/cmake/Torch/TorchConfig.cmake").parent

    def wheels_of_cuda(self):
        self.write("packages/nvidia/cu13/include/cublas_v2.h")
        self.write("packages/nvidia/cudnn/include/cudnn.h")
        self.write("packages/nvidia/cu13/include/crt/host_config.h")
        self.write("packages/nvidia/cu13/lib/libcudart.so.13")

    def said(self, *arguments, nvcc="", **variables):
        """The folder of LibTorch, what it says of CUDA, and what torch::cudart links and includes."""
        build = tempfile.mkdtemp(dir=self.scratch)
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"} | variables
        done = subprocess.run([CMAKE, "-G", "Ninja", "-S", HERE / "cuda_project", "-B", build, f"-DFUNCTIONS={FUNCTIONS}", f"-DSTAGECRAFT_NVCC={nvcc}", *arguments],
                              env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        folder, result, links, includes = pathlib.Path(build, "said.txt").read_text().splitlines()
        return folder, result, links, includes.split(";") if includes else []

    def test_the_wheels_of_cuda_are_enough(self):
        torch = self.wheel(cuda=1)
        self.wheels_of_cuda()
        folder, result, links, includes = self.said(f"-DLAST={torch}")
        packages = self.scratch / "packages/nvidia"
        self.assertEqual((folder, result, links), (str(torch), "ON", str(packages / "cu13/lib/libcudart.so.13")))
        self.assertEqual(sorted(includes), [str(packages / "cu13/include"), str(packages / "cudnn/include")])

    def test_the_headers_of_the_compiler_are_needed_too(self):
        torch = self.wheel(cuda=1)
        self.wheels_of_cuda()
        (self.scratch / "packages/nvidia/cu13/include/crt/host_config.h").unlink()
        self.assertEqual(self.said(f"-DLAST={torch}")[1:3], ("OFF", ""))

    def test_without_anything_of_cuda_programs_compute_on_the_cpu(self):
        self.assertEqual(self.said(f"-DLAST={self.wheel(cuda=1)}")[1], "OFF")
        # An nvcc without the libraries is no toolkit.
        self.assertEqual(self.said(f"-DLAST={self.wheel(cuda=1)}", nvcc=self.write("half/bin/nvcc"))[1], "OFF")

    def test_a_whole_toolkit_is_left_to_libtorch(self):
        torch = self.wheel(cuda="ON")
        self.wheels_of_cuda()
        nvcc = self.write("toolkit/bin/nvcc")
        self.write("toolkit/include/cublas_v2.h")
        self.assertEqual(self.said(f"-DLAST={torch}", nvcc=nvcc), (str(torch), "", "", []))

    def test_a_libtorch_without_cuda_needs_nothing(self):
        torch = self.wheel(cuda=0)
        self.wheels_of_cuda()
        self.assertEqual(self.said(f"-DLAST={torch}"), (str(torch), "", "", []))
        self.assertEqual(self.said()[1:], ("", "", []))

    def test_libtorch_is_taken_from_where_cmake_takes_it(self):
        last, first = self.wheel(0), self.wheel(0, packages="others")
        prefix = first.parent.parent.parent
        for place in [f"-DTorch_DIR={first}", f"-DTorch_ROOT={prefix}", f"-DCMAKE_PREFIX_PATH=/nowhere;{prefix}", f"-DCMAKE_PREFIX_PATH={first.parent}"]:
            self.assertEqual(self.said(f"-DLAST={last}", place)[0], str(first), place)
        self.assertEqual(self.said(f"-DLAST={last}", CMAKE_PREFIX_PATH=f"/nowhere:{prefix}")[0], str(first))


if __name__ == "__main__":
    unittest.main()
