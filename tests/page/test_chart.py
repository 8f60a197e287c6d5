"""The chart: dragging, keys, zoom, tooltips, the critical path, and the deadlock drawn on it."""

import json
import unittest

from browser import PageCase, command
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

DEADLOCK = "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"
DEFERRED = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"


class Charts(PageCase):
    def setUp(self):
        super().setUp()
        self.open("p=4&m=6&s=1F1B")

    def drag(self, text, to_text, after=False):
        index, target = self.action(text), self.action(to_text)
        x, y = self.center(index)
        to_x, _ = self.center(target)
        to_x += (3 if after else -3)
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, 1)
        for part in (0.3, 0.6, 1):
            self.mouse("mouseMoved", x + (to_x - x) * part, y, 1)
        self.mouse("mouseReleased", to_x, y)

    def row(self, rank):
        return [cell for cell in self.js("return stagecraft.csv()").split("\r\n")[rank].split(",") if cell]

    def test_drag_changes_the_order_and_the_numbers(self):
        before, span = self.row(0), self.js("return stagecraft.reply.span")
        self.drag("0F4", "0F3")
        moved = [cell for cell in before if cell != "0F4"]
        moved.insert(moved.index("0F3"), "0F4")
        self.assertEqual(self.row(0), moved)
        self.assertEqual(self.settings()["s"], "file")
        path = self.folder / "moved.csv"
        path.write_bytes(self.js("return stagecraft.csv()").encode())
        expected = json.loads(command("simulate", path, "--costs", "-", "--format", "json", text=self.js("return stagecraft.costs()")))
        self.assertEqual(self.js("return stagecraft.reply.makespan"), expected["makespan"])
        self.assertIn("Safe", self.find("verdict").text)
        self.click("undo")
        self.assertEqual((self.row(0), self.js("return stagecraft.reply.span")), (before, span))

    def test_drag_into_a_deadlock_is_drawn_and_undone(self):
        self.drag("3B5", "3F0")
        self.assertIn("Refused", self.find("verdict").text)
        self.assertEqual(self.figure("Verdict"), "refused")
        self.click("undo")
        self.assertEqual(self.figure("Verdict"), None)

    def test_an_edit_travels_in_the_link(self):
        self.drag("0F4", "0F3")
        csv = self.js("return stagecraft.csv()")
        self.until(lambda: "csv=" in self.js("return location.href"))
        self.open(self.js("return location.href").split("#")[1])
        self.assertEqual(self.js("return stagecraft.csv()"), csv)

    def test_keyboard_selects_moves_and_undoes(self):
        chart = self.find("chart")
        self.js("arguments[0].focus()", chart)
        chart.send_keys(Keys.ARROW_RIGHT)
        self.assertIn("0F0: forward of stage 0, microbatch 0", self.find("selection").text)
        chart.send_keys(Keys.ARROW_DOWN)
        self.assertIn("1F0", self.find("selection").text)
        chart.send_keys(Keys.END)
        self.assertIn("1B5", self.find("selection").text)
        chart.send_keys(Keys.HOME)
        before = self.row(1)
        chart.send_keys(Keys.ALT, Keys.ARROW_RIGHT)
        chart.send_keys(Keys.NULL)
        self.assertEqual(self.row(1)[:2], [before[1], before[0]])
        self.assertIn("1F0", self.find("selection").text)
        chart.send_keys(Keys.CONTROL, "z")
        chart.send_keys(Keys.NULL)
        self.assertEqual(self.row(1), before)
        for key, check in [("+", "stagecraft.view.end - stagecraft.view.begin < stagecraft.view.whole"), ("]", "stagecraft.view.begin > 0"), ("[", "true"),
                           ("-", "true"), ("0", "stagecraft.view.end === stagecraft.view.whole"), ("c", "stagecraft.settings.cp === 1")]:
            chart.send_keys(key)
            self.assertTrue(self.js(f"return {check}"), key)

    def test_zoom_and_pan_with_mouse_and_buttons(self):
        x, y = self.center(0)
        self.browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseWheel", "x": x + 200, "y": y, "deltaX": 0, "deltaY": -300, "modifiers": 2})
        self.until(lambda: self.js("return stagecraft.view.end < stagecraft.view.whole"))
        begin = self.js("return stagecraft.view.begin")
        self.browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseWheel", "x": x, "y": y, "deltaX": 120, "deltaY": 0})
        self.until(lambda: self.js("return stagecraft.view.begin") > begin)
        self.click("zoom-fit")
        self.assertEqual(self.js("return [stagecraft.view.begin, stagecraft.view.end === stagecraft.view.whole]"), [0, True])
        self.click("zoom-in")
        self.click("zoom-out")
        self.click("zoom-out")
        self.assertTrue(self.js("return stagecraft.view.end === stagecraft.view.whole"))

    def test_tooltip_has_the_numbers(self):
        index = self.action("2B3")
        x, y = self.center(index)
        self.mouse("mouseMoved", x, y)
        text = self.find("tooltip").text
        start, end = self.js("const a = stagecraft.chart.actions; return [a.of(arguments[0], 'start'), a.of(arguments[0], 'end')]", index)
        for part in ("2B3", "rank 2", f"starts {start:g}", f"ends {end:g}", f"takes {end - start:g}", "slack"):
            self.assertIn(part, text)

    def test_critical_path_and_slack(self):
        self.click("cp")
        path = self.folder / "cp.csv"
        path.write_bytes(self.js("return stagecraft.csv()").encode())
        expected = json.loads(command("simulate", path, "--costs", "-", "--format", "json", text=self.js("return stagecraft.costs()")))["critical_path"]["actions"]
        self.assertEqual(self.js("const c = stagecraft.chart; return c.path.map((i) => c.actions.text(i))"), [one["action"] for one in expected])
        self.assertTrue(self.js("return stagecraft.chart.showPath"))
        slack = self.js("const a = stagecraft.chart.actions; return Array.from({length: a.count}, (_, i) => [a.of(i, 'critical'), a.of(i, 'slack')])")
        self.assertTrue(all(abs(left) < 1e-9 for critical, left in slack if critical))
        self.assertTrue(any(left > 0 for _, left in slack))

    def test_slack_is_what_an_action_may_lose(self):
        """Slower by its slack, and the step takes no longer; by more, and it does."""
        self.open("p=3&m=3&s=1F1B")
        found = self.js("const a = stagecraft.chart.actions; return Array.from({length: a.count}, (_, i) => [a.text(i), a.of(i, 'slack')])")
        makespan = self.js("return stagecraft.reply.makespan")
        stage_slack = min(left for text, left in found if text.startswith("0F"))
        for more, longer in ((stage_slack / 3, False), (stage_slack + 1, True)):
            costs = json.dumps({"forward": [1 + more, 1, 1], "backward_input": 1, "backward_weight": 1})
            reply = self.engine("show", {"source": {"csv": self.js("return stagecraft.csv()")}, "costs": costs})
            self.assertEqual(reply["makespan"] > makespan + 1e-9, longer)

    def test_pasted_deadlock_is_drawn_action_by_action(self):
        for csv in (DEADLOCK,):
            self.js("document.getElementById('paste').value = arguments[0]", csv)
            self.click("check")
            self.assertIn("wait for each other", self.find("verdict").text)
            cycle = self.js("const c = stagecraft.chart; return c.cycle.map(({from, to}) => [c.actions.text(from), c.actions.text(to)])")
            checked = self.engine("check", {"source": {"csv": csv}})
            self.assertEqual(cycle, [[link["action"], link["on_action"]] for link in checked["cycle"]])
            self.assertGreaterEqual(len(cycle), 2)
            self.picture_has_danger()

    def picture_has_danger(self):
        """The colour of the cycle is on the canvas."""
        self.js("stagecraft.chart.paint()")
        self.assertTrue(self.js("""const c = stagecraft.chart; const want = c.palette.danger; const [r, g, b] = [1, 3, 5].map((i) => parseInt(want.slice(i, i + 2), 16));
            const data = c.context.getImageData(0, 0, c.canvas.width, c.canvas.height).data;
            let n = 0; for (let i = 0; i < data.length; i += 4) if (Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 12) ++n; return n > 50"""))

    def test_deadlock_of_blocking_sends_in_a_lowered_schedule(self):
        path = self.folder / "lowered.csv"
        plain = self.folder / "plain.csv"
        plain.write_bytes(command("schedule", "1F1B", "--ranks", 2, "--microbatches", 4, "--format", "csv"))
        command("lower", plain, "--passes", "send_recv,defer_receives", "-o", path)
        self.drop("lowered.csv", path.read_text())
        self.until(lambda: self.settings()["s"] == "file")
        self.assertIn("Refused", self.find("verdict").text)
        self.click("show-cycle")
        self.assertGreaterEqual(self.js("return stagecraft.chart.cycle.length"), 2)
        self.picture_has_danger()

    def test_edit_shown(self):
        self.click("edit-shown")
        self.assertEqual(self.js("return document.getElementById('paste').value"), self.js("return stagecraft.csv()").replace("\r\n", "\n"))
        self.click("check")
        self.assertIn("Safe", self.find("verdict").text)


if __name__ == "__main__":
    unittest.main()
