"""What was installed of the half that trains: README's program in a project of its own, and `stagecraft train`."""

import pathlib
import re
import shutil
import sys
import unittest

from installed_case import BUILD, CMAKE, ROOT, InstalledCase

sys.path.insert(0, str(ROOT / "tests" / "cli"))

def program_of_readme():
    """The first C++ program of README.md, as it stands."""
    blocks = re.findall(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return next(block for block in blocks if "int main" in block)


def libtorch():
    """Where the build has LibTorch."""
    cache = (BUILD / "CMakeCache.txt").read_text()
    return pathlib.Path(re.search(r"^Torch_DIR:PATH=(.*)$", cache, re.MULTILINE)[1])


class Training(InstalledCase):
    def test_readmes_program_trains_however_the_packages_are_found(self):
        source = self.scratch / "readme.cpp"
        source.write_text(program_of_readme())
        build, _ = self.configure("training_project", "training", f"-DPROGRAM={source}", f"-DLIBTORCH={libtorch()}")
        self.run_in_empty(CMAKE, "--build", build)
        for way in ["component", "torch_first", "torch_first_component", "torch_last"]:
            with self.subTest(way=way):
                said = self.run_in_empty(build / "bin" / way).stdout
                losses = [float(loss) for loss in re.findall(r"^[0-9]+: ([0-9.]+)$", said, re.MULTILINE)]
                self.assertEqual(len(losses), 100, said)
                self.assertLess(losses[-1], losses[0])

    def test_a_project_that_finds_no_libtorch_is_told(self):
        _, done = self.configure("refused_project", "no_torch", "-DCOMPONENTS=torch", "-DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON", check=False)
        self.assert_refused(done, "component torch cannot be used: LibTorch was not found", "give -DTorch_DIR=")

    def test_a_project_that_asks_for_no_component_and_trains_is_told(self):
        _, done = self.configure("refused_project", "no_component", check=False)
        self.assert_refused(done, "stagecraft::needs_find_package_Stagecraft_COMPONENTS_torch")

    def test_an_installation_without_the_half_that_trains_says_so(self):
        prefix = self.scratch / "half"
        shutil.copytree(self.prefix, prefix)
        (prefix / "lib/libstagecraft_model.a").unlink()
        _, done = self.configure("refused_project", "half_torch", "-DCOMPONENTS=torch", prefix=prefix, check=False)
        self.assert_refused(done, "the half that trains was not built before the installation", "libstagecraft_model.a")
        self.configure("schedule_project", "half_schedule", prefix=prefix)

    def test_another_libtorch_is_refused(self):
        config = self.scratch / "older/share/cmake/Torch"
        config.mkdir(parents=True)
        (config / "TorchConfig.cmake").write_text("add_library(torch INTERFACE IMPORTED)\nset(TORCH_INSTALL_PREFIX /older)\n")
        (config / "TorchConfigVersion.cmake").write_text("set(PACKAGE_VERSION 1.0.0)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
        _, done = self.configure("refused_project", "older_torch", "-DCOMPONENTS=torch", f"-DTorch_DIR={config}", check=False)
        self.assert_refused(done, "it was built with LibTorch", "and /older is 1.0.0")

    def test_the_command_trains_an_exported_model(self):
        import exported
        import torch
        from safetensors.torch import save_file

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        program = exported.export(model, (torch.randn(4, 4),), dynamic_shapes={"input": {0: torch.export.Dim("rows", min=1, max=64)}})
        torch.export.save(program, self.scratch / "model.pt2")
        save_file({"input": torch.randn(16, 4), "target": torch.randn(16, 2)}, self.scratch / "data.safetensors")
        done = self.run_in_empty(self.prefix / "bin/stagecraft", "train", "model.pt2", "--data", "data.safetensors", "--loss", "mse", "--ranks", 2,
                                 "--steps", 3, "--batch", 8, "--microbatches", 2, "--save", "weights.safetensors")
        self.assertIn("loss", done.stdout + done.stderr)
        self.assertTrue((self.scratch / "weights.safetensors").exists())


if __name__ == "__main__":
    unittest.main()
