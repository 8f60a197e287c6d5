"""Files: dropped, embedded by the command, measured beside planned, and broken."""

import json
import subprocess
import unittest

from browser import BIN, PageCase, command
from recorded import timeline

COSTS = '{"forward":2,"backward_input":2,"backward_weight":1}'


def one_f_one_b(ranks=4, microbatches=6):
    return command("schedule", "1F1B", "--ranks", ranks, "--microbatches", microbatches, "--format", "csv").decode()


class Files(PageCase):
    def setUp(self):
        super().setUp()
        self.open()

    def test_dropped_schedule_is_shown_and_checked(self):
        self.drop("mine.csv", one_f_one_b())
        self.until(lambda: self.settings()["s"] == "file")
        self.assertEqual((self.settings()["p"], self.settings()["m"]), (4, 6))
        self.assertIn("Safe", self.find("verdict").text)
        self.assertIn("mine.csv", self.find("chart-title").text)

    def test_dropped_costs_take_the_place_of_the_sliders(self):
        self.type("p", 4)
        self.drop("costs.json", '{"forward": [1, 2, 1, 1], "backward_input": 1, "backward_weight": 1}')
        self.until(lambda: self.js("return stagecraft.costsFile"))
        self.assertFalse(self.find("sliders").is_displayed())
        path = self.folder / "s.csv"
        path.write_bytes(self.js("return stagecraft.csv()").encode())
        expected = json.loads(command("simulate", path, "--costs", "-", "--format", "json", text=self.js("return stagecraft.costs()")))
        self.assertEqual(self.js("return stagecraft.reply.makespan"), expected["makespan"])
        self.click("costs-drop")
        self.assertTrue(self.find("sliders").is_displayed())

    def test_costs_by_stage_give_the_ranks(self):
        self.drop("costs.json", '{"forward": [1, 2, 1, 1, 3, 1], "backward_input": 1, "backward_weight": 1}')
        self.until(lambda: self.js("return stagecraft.costsFile"))
        self.assertEqual(self.settings()["p"] * self.settings()["v"], 6)
        self.assertEqual([text for text in self.messages() if "costs are for" not in text], [])

    def test_measured_beside_planned(self):
        self.drop("run.json", timeline(one_f_one_b(), COSTS))
        self.until(lambda: self.find("measured").is_displayed())
        self.assertEqual(self.messages(), [])
        self.assertIn("of 3 took", self.find("measured-facts").text)
        self.assertEqual(self.js("return stagecraft.measured.chart.view === stagecraft.chart.view"), True)
        # With the costs that the run was planned with, the slow stage is what lost.
        planned = json.dumps({key: value / 1000 for key, value in json.loads(COSTS).items()})
        self.click("measured-close")
        self.js("stagecraft.useCosts('', null)")
        self.drop("costs.json", planned)
        self.until(lambda: self.js("return stagecraft.costsFile"))
        self.drop("run.json", timeline(one_f_one_b(), COSTS))
        self.until(lambda: self.find("measured").is_displayed())
        self.assertIn("lost", self.find("measured-facts").text)
        first = self.find("losses").text.split("\n")[1]
        self.assertTrue(first.startswith("2 (rank 2)"), first)
        self.assertEqual(len(self.find("measured-ranks").text.split("\n")), 5)
        # The tooltip compares an action with its plan.
        self.js("document.getElementById('measured-chart').scrollIntoView({block: 'center'})")
        x, y = self.js("const c = stagecraft.measured.chart, b = c.box(c.actions.first[3]), r = c.canvas.getBoundingClientRect(); return [r.left + (b.from + b.to) / 2, r.top + b.middle]")
        self.mouse("mouseMoved", x, y)
        self.assertIn("planned start", self.find("tooltip").text)
        self.click("measured-costs")
        self.assertIn("measured", self.find("costs-file").text)

    def test_command_embeds_files(self):
        (self.folder / "a.csv").write_text(one_f_one_b())
        (self.folder / "b.csv").write_bytes(command("schedule", "GPipe", "--ranks", 4, "--microbatches", 6, "--format", "csv"))
        (self.folder / "costs.json").write_text(COSTS)
        command("page", "-o", self.folder / "with.html", self.folder / "a.csv", self.folder / "b.csv", self.folder / "costs.json")
        self.open(path=self.folder / "with.html")
        self.assertEqual(self.js("return [stagecraft.own.name, stagecraft.ownSecond.name, stagecraft.costsFile.name, stagecraft.settings.b]"), ["a.csv", "b.csv", "costs.json", "file"])
        self.assertTrue(self.find("second").is_displayed())
        self.assertEqual(self.messages(), [])
        self.assertLessEqual((self.folder / "with.html").stat().st_size, 3 * 1024 * 1024)

    def test_command_embeds_a_timeline(self):
        (self.folder / "run.json").write_text(timeline(one_f_one_b(), COSTS))
        command("page", "-o", self.folder / "run.html", self.folder / "run.json")
        self.open(path=self.folder / "run.html")
        self.assertTrue(self.find("measured").is_displayed())

    def test_embedded_text_cannot_end_the_script(self):
        (self.folder / "</script><b>x.csv").mkdir(parents=True)
        path = self.folder / "</script><b>x.csv" / "y.csv"
        path.write_text(one_f_one_b())
        command("page", "-o", self.folder / "odd.html", path)
        self.open(path=self.folder / "odd.html")
        self.assertEqual(self.settings()["s"], "file")

    def test_command_refuses_what_the_page_could_not_show(self):
        (self.folder / "bad.csv").write_text("0F0,what\n")
        (self.folder / "bad.json").write_text('{"forwards": 1}')
        for name, words in (("bad.csv", "what"), ("bad.json", "forwards"), ("nowhere.csv", "cannot read it")):
            done = subprocess.run([BIN, "page", "-o", self.folder / "no.html", self.folder / name], capture_output=True, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr.decode())
        self.assertFalse((self.folder / "no.html").exists())

    def test_command_without_a_built_page_says_what_to_do(self):
        done = subprocess.run([BIN, "page", "-o", self.folder / "no.html"], capture_output=True, check=False, env={"STAGECRAFT_PAGE": "/nowhere/page.html"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("make page", done.stderr.decode())

    def test_size(self):
        size = self.page.stat().st_size
        print(f"page: {size} bytes", flush=True)
        self.assertLessEqual(size, 3 * 1024 * 1024)


class BadInput(PageCase):
    """A clear message, and a page that goes on."""

    def setUp(self):
        super().setUp()
        self.open()

    def assert_usable(self):
        self.choose("s", "1F1B")
        self.type("p", 3)
        self.type("m", 16)
        self.assertEqual(self.figure("Bubble"), "11.11%")

    def refused(self, name, text, *words):
        self.drop(name, text)
        self.until(self.messages)
        for word in words:
            self.assertIn(word, self.messages()[0])
        self.assert_usable()

    def test_broken_schedule(self):
        self.refused("bad.csv", "0F0,0X0\n1F0,1B0\n", "bad.csv", "row 1, column 2", "0X0")

    def test_empty_schedule(self):
        self.drop("empty.csv", "\n")
        self.until(lambda: self.find("verdict").is_displayed())
        self.assertIn("at least one F", self.find("verdict").text)
        self.assert_usable()
        self.refused("nothing.csv", "", "nothing.csv", "no rows")

    def test_schedule_with_a_hole(self):
        self.drop("hole.csv", "0F0,0B0\n2F0,2B0\n")
        self.until(lambda: self.find("verdict").is_displayed())
        self.assertIn("Refused", self.find("verdict").text)
        self.assert_usable()

    def test_bytes_that_are_no_text(self):
        self.refused("noise.csv", "\x00\x01\x02,\x7f\n", "noise.csv")

    def test_costs_with_a_wrong_key(self):
        self.refused("costs.json", '{"forward": 1, "backwards_input": 2}', "costs.json", "backwards_input")

    def test_costs_that_do_not_fit(self):
        self.drop("mine.csv", one_f_one_b())
        self.drop("costs.json", '{"forward": [1, 2], "backward_input": 1, "backward_weight": 1}')
        self.until(self.messages)
        self.click("costs-drop")
        self.assert_usable()

    def test_broken_timeline(self):
        self.refused("run.json", '{"traceEvents": [{"ph": "X", "name": "0F0"}]}', "run.json")

    def test_large_file(self):
        self.js("""const data = new DataTransfer(); data.items.add(new File([new Uint8Array(100 * 1024 * 1024)], 'large.csv'));
                   document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}))""")
        self.until(self.messages)
        self.assertIn("100 MiB, and the most is 64 MiB", self.messages()[0])
        self.assert_usable()

    def test_many_ranks(self):
        self.type("p", 10000)
        self.until(self.messages)
        self.assertIn("at most 1024 ranks, and these are 10000", self.messages()[0])
        self.type("p", 3)
        self.assertEqual(self.messages(), [])
        self.assert_usable()

    def test_numbers_that_are_none(self):
        for name in ("p", "v", "m", "f-number", "lim"):
            self.find(name).clear()
            self.find(name).send_keys("-1")
        self.assert_usable()

    def test_links_with_nonsense(self):
        for text in ("p=abc&m=-3&s=Nothing", "csv=!!!&s=file", "per=1%202;x", "s=plan&p=0"):
            self.browser.get("about:blank")
            self.open(text)
            self.choose("s", "1F1B")
            self.type("p", 3)
            self.type("m", 16)
            self.assertTrue(self.figure("Bubble"))


if __name__ == "__main__":
    unittest.main()
