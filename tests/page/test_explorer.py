"""Every control of the explorer, with the mouse and without."""

import json
import unittest

from browser import BIN, PageCase, command
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

COSTS = '{"forward":1,"backward_input":1,"backward_weight":1,"activation_memory":1,"weight_gradient_memory":1}'


def simulated(folder, csv, costs):
    path = folder / "shown.csv"
    path.write_bytes(csv)
    return json.loads(command("simulate", path, "--costs", "-", "--format", "json", text=costs))


class Explorer(PageCase):
    def setUp(self):
        super().setUp()
        self.open()

    def assert_shows(self, schedule, ranks, stages_per_rank, microbatches, costs=None):
        """The figures are those of the command for this schedule."""
        csv = command("schedule", schedule, "--ranks", ranks, "--stages-per-rank", stages_per_rank, "--microbatches", microbatches, "--format", "csv")
        self.assertEqual(self.js("return stagecraft.csv()"), csv.decode())
        expected = simulated(self.folder, csv, costs or self.js("return stagecraft.costs()"))
        self.assertEqual(self.js("return [stagecraft.reply.span, stagecraft.reply.makespan, stagecraft.reply.bubble_span, stagecraft.reply.peak.max]"),
                         [expected["span"], expected["makespan"], expected["bubble_span"], expected["peak"]["max"]])
        self.assertEqual(self.figure("Bubble"), f"{100 * expected['bubble_span']:.2f}%")

    def test_it_opens_with_a_schedule(self):
        self.assert_shows("ZB-H1", 8, 1, 16, COSTS)
        self.assertEqual(self.messages(), [])

    def test_shape(self):
        self.type("p", 4)
        self.type("m", 10)
        self.assert_shows("ZB-H1", 4, 1, 10, COSTS)
        self.type("v", 2)  # another schedule, since this one has one stage per rank; the stages are half as long
        self.assert_shows("InterleavedZeroBubble", 4, 2, 10)
        self.assertEqual(json.loads(self.js("return stagecraft.costs()"))["forward"], 0.5)

    def test_every_schedule(self):
        for one in json.loads(command("list", "--format", "json"))["schedules"]:
            with self.subTest(one["name"]):
                self.choose("s", one["name"])
                v = self.settings()["v"]
                self.assertTrue(one["min_stages_per_rank"] <= v <= one["max_stages_per_rank"])
                self.assert_shows(one["name"], 8, v, 16)

    def test_times_by_slider_by_number_and_by_stage(self):
        self.slide("f", 1.5)
        self.slide("i", 0.75)
        self.slide("lat", 0.3)
        self.assert_shows("ZB-H1", 8, 1, 16, '{"forward":1.5,"backward_input":0.75,"backward_weight":1,"latency":0.3,"activation_memory":1,"weight_gradient_memory":1}')
        self.type("w-number", 2.25)
        self.assertEqual(json.loads(self.js("return stagecraft.costs()"))["backward_weight"], 2.25)
        self.find("per-stage").find_element(By.TAG_NAME, "summary").click()
        field = self.browser.find_element(By.CSS_SELECTOR, 'input[aria-label="F of stage 3"]')
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys("4")
        self.assertEqual(json.loads(self.js("return stagecraft.costs()"))["forward"], [1.5, 1.5, 1.5, 4, 1.5, 1.5, 1.5, 1.5])
        self.assert_shows("ZB-H1", 8, 1, 16)

    def test_memory(self):
        self.type("act", 2)
        self.type("wg", 0.5)
        self.type("lim", 6)
        self.assert_shows("ZB-H1", 8, 1, 16)
        self.assertEqual(self.figure("Peak memory"), "16")
        self.assertTrue(self.js("return document.querySelector('[data-figure=\"Peak memory\"]').closest('div').classList.contains('bad')"))

    def test_lower_bound_is_that_of_the_planner(self):
        plan = json.loads(command("plan", "--ranks", 8, "--microbatches", 16, "--costs", "-", "--format", "json", "--effort", 0.01, text=COSTS))
        self.assertEqual(self.js("return stagecraft.reply.lower_bound"), plan["lower_bound_span"])

    def test_what_if(self):
        self.choose("s", "1F1B")
        before = self.js("return stagecraft.reply.makespan")
        self.choose("ws", "3")
        self.slide("wp", 50)
        self.assertIn("0.5", self.js("return stagecraft.costs()"))
        self.assertLess(self.js("return stagecraft.reply.makespan"), before)
        self.assertIn("less", self.find("what-if").text)
        self.assert_shows("1F1B", 8, 1, 16)

    def test_comparison_names_all_and_chooses(self):
        rows = self.until(lambda: (found := self.browser.find_elements(By.CSS_SELECTOR, "#comparison tbody tr")) and len(found) == 13 and found)
        names = [row.find_element(By.TAG_NAME, "td").text for row in rows]
        self.assertEqual(sorted(names), sorted(one["name"] for one in json.loads(command("list", "--format", "json"))["schedules"] if one["name"] != "ForwardOnly"))
        row = self.browser.find_element(By.CSS_SELECTOR, '[data-key="ZBVZeroBubble"]')
        span = row.find_elements(By.TAG_NAME, "td")[4].text
        self.js("arguments[0].focus()", row)
        row.send_keys(Keys.ENTER)
        self.assertEqual(self.settings()["s"], "ZBVZeroBubble")
        self.assertEqual(self.figure("Span"), span)  # the same model, cut finer

    def test_side_by_side_on_one_clock(self):
        self.choose("b", "1F1B")
        self.assertTrue(self.find("second").is_displayed())
        self.assertIn("longer", self.find("second-facts").text)
        self.assertEqual(self.js("return stagecraft.view.whole"), max(self.js("return [stagecraft.chart.actions.end, stagecraft.second.actions.end]")))
        self.click("zoom-in")
        self.assertEqual(self.js("return stagecraft.second.view === stagecraft.chart.view"), True)
        self.choose("b", "")
        self.assertFalse(self.find("second").is_displayed())

    def test_plan_gives_the_schedule_of_the_command(self):
        self.type("p", 4)
        self.type("m", 6)
        self.slide("w", 0.5)
        self.choose("s", "plan")
        self.type("eff", 0.05)
        self.choose("place", "linear")
        self.until(lambda: self.js("return stagecraft.search.found && stagecraft.search.found.finished"))
        expected = command("plan", "--ranks", 4, "--stages-per-rank", 1, "--microbatches", 6, "--placement", "linear", "--effort", 0.05, "--costs", "-",
                           "--format", "csv", "--time-budget", 600, text=self.js("return stagecraft.costs()")).decode()
        self.assertEqual(self.js("return stagecraft.csv()"), expected)
        self.assertIn("The command finds the same", self.find("plan-status").text)
        self.assertEqual(self.js("return document.getElementById('plan-progress').value"), 1)
        self.assertTrue(self.browser.find_elements(By.CSS_SELECTOR, '[data-key="plan"]'))
        self.assertEqual(self.messages(), [])

    def test_plan_stops_and_keeps_the_best_so_far(self):
        self.open("p=8&m=32&f=1.13&i=0.97&w=0.61&lat=0.2")  # takes a while
        self.choose("s", "plan")
        self.until(lambda: self.js("return stagecraft.search.found"))
        self.click("plan-stop")
        self.assertIn("stopped", self.find("plan-status").text)
        self.assertFalse(self.js("return stagecraft.search.running"))
        self.assertTrue(self.js("return stagecraft.csv().length > 100"))
        self.click("plan-stop")  # again
        self.assertTrue(self.js("return stagecraft.search.running"))

    def test_plan_with_a_limit_that_nothing_keeps(self):
        self.type("lim", 0.5)
        self.choose("s", "plan")
        self.until(self.messages)
        self.assertIn("memory limit", self.messages()[0])
        self.type("lim", 8)
        self.until(lambda: self.js("return stagecraft.search.found"))
        self.until(lambda: not self.messages())

    def test_state_is_in_the_address(self):
        self.type("p", 4)
        self.choose("s", "V-Min")
        self.slide("f", 2)
        self.click("cp")
        address = self.js("stagecraft.flushHash(); return location.href")
        shown = self.js("return [stagecraft.csv(), stagecraft.costs(), stagecraft.reply.span, stagecraft.settings.cp]")
        self.open(address.split("#")[1])
        self.assertEqual(self.js("return [stagecraft.csv(), stagecraft.costs(), stagecraft.reply.span, stagecraft.settings.cp]"), shown)

    def test_themes(self):
        shades = []
        for _ in range(3):
            self.click("theme")
            shades.append(self.js("return [document.documentElement.dataset.shade, stagecraft.palette.dark]"))
        self.assertEqual(shades, [["dark", True], ["light", False], ["light", False]])  # dark, light, as the system

    def test_downloads_are_the_files_of_the_command(self):
        costs = self.js("return stagecraft.costs()")
        shape = ["--ranks", 8, "--stages-per-rank", 1, "--microbatches", 16]
        csv = command("schedule", "ZB-H1", *shape, "--format", "csv")
        path = self.folder / "zb-h1-8x16.csv"
        path.write_bytes(csv)
        for button, name, form in [("download-csv", "zb-h1-8x16.csv", None), ("download-svg", "zb-h1-8x16.svg", "svg"), ("download-trace", "zb-h1-8x16.trace.json", "trace"),
                                   ("download-costs", "costs.json", "costs")]:
            with self.subTest(button):
                self.find("export-menu").find_element(By.TAG_NAME, "summary").click()
                self.click(button)
                expected = csv if form is None else (costs + "\n").encode() if form == "costs" else command("simulate", path, "--costs", "-", "--format", form, text=costs)
                self.assertEqual(self.downloaded(name), expected)

    def test_copied_command_and_program(self):
        for schedule in ("ZBVZeroBubble", "plan"):
            self.choose("s", schedule)
            self.find("export-menu").find_element(By.TAG_NAME, "summary").click()
            self.click("copy-command")
            text = self.js("return stagecraft.exports.lastCopied")
            self.assertIn("stagecraft plan" if schedule == "plan" else "stagecraft schedule ZBVZeroBubble", text)
            self.find("export-menu").find_element(By.TAG_NAME, "summary").click()
            self.click("copy-cpp")
            self.assertIn("#include <stagecraft/schedule.h>", self.js("return stagecraft.exports.lastCopied"))
        self.choose("s", "ZBVZeroBubble")
        self.find("export-menu").find_element(By.TAG_NAME, "summary").click()
        self.click("copy-command")
        import subprocess
        shell = self.js("return stagecraft.exports.lastCopied").replace("stagecraft ", BIN + " ")
        done = subprocess.run(["bash", "-c", "set -e\n" + shell], cwd=self.folder, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{self.js('return stagecraft.reply.span'):.6g}", done.stdout.decode())


class Phone(PageCase):
    width, height = 500, 900

    def test_it_fits(self):
        self.open()
        self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), self.js("return window.innerWidth"))
        self.choose("b", "1F1B")
        self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), self.js("return window.innerWidth"))


class Printing(PageCase):
    def test_it_prints_without_controls(self):
        self.open()
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        self.assertFalse(self.find("controls").is_displayed())
        self.assertTrue(self.find("chart").is_displayed())
        pdf = self.browser.execute_cdp_cmd("Page.printToPDF", {})
        self.assertGreater(len(pdf["data"]), 10000)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen"})


if __name__ == "__main__":
    unittest.main()
