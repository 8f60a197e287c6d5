"""Pictures of the page in both themes, for people to look at: into the folder STAGECRAFT_PAGE_PICTURES, if that is set."""

import os
import pathlib
import unittest

from browser import PageCase, command
from recorded import timeline

FOLDER = os.environ.get("STAGECRAFT_PAGE_PICTURES")


@unittest.skipUnless(FOLDER, "no folder for pictures")
class Light(PageCase):
    theme = "light"
    height = 1080

    def save(self, name):
        self.js("document.activeElement.blur(); return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.picture(pathlib.Path(FOLDER) / f"page-{name}-{self.theme}.png")

    def test_explorer(self):
        self.open("p=8&m=16&s=ZBVZeroBubble&v=2&f=0.5&i=0.55&w=0.45&lat=0.05&act=0.5&wg=0.5&cp=1")
        self.until(lambda: len(self.js("return [...document.querySelectorAll('#comparison tbody tr')].map((e) => 1)")) == 13)
        x, y = self.center(self.action("5F7"))
        self.js("scrollTo(0, 0)")
        x, y = self.js("const c = stagecraft.chart, b = c.box(arguments[0]), r = c.canvas.getBoundingClientRect(); return [r.left + (b.from + b.to) / 2, r.top + b.middle]", self.action("5F7"))
        self.mouse("mouseMoved", x, y)
        self.save("explorer")

    def test_deadlock(self):
        self.open()
        csv = "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n2F2,2B2,2F0,2B0,2F1,2B1\n".replace("1F0,1F1,1F2,1B0", "1F0,1B0,1F1,1F2")
        self.js("stagecraft.openSchedule('mine.csv', arguments[0]); scrollTo(0, 0)", csv)
        self.save("deadlock")

    def test_side_by_side(self):
        if self.dark:
            self.skipTest("one theme will do")
        self.open("p=8&m=16&s=1F1B&b=ZB-H2")
        self.js("scrollTo(0, 0)")
        self.save("beside")

    def test_measured(self):
        costs = '{"forward":2,"backward_input":2,"backward_weight":1}'
        csv = command("schedule", "1F1B", "--ranks", 4, "--microbatches", 8, "--format", "csv").decode()
        self.open()
        self.js("stagecraft.useCosts('costs.json', arguments[0])", '{"forward":0.002,"backward_input":0.002,"backward_weight":0.001}')
        self.js("stagecraft.openTimeline('run.json', arguments[0])", timeline(csv, costs))
        self.js("document.getElementById('measured').scrollIntoView({block: 'end'})")
        self.save("measured")

    def test_large(self):
        if not self.dark:
            self.skipTest("one theme will do")
        self.open("p=64&m=512&s=1F1B")
        self.js("scrollTo(0, 0)")
        self.save("large")


class Dark(Light):
    theme, dark = "dark", True


@unittest.skipUnless(FOLDER, "no folder for pictures")
class Phone(PageCase):
    width, height, dark = 500, 1000, True

    def test_phone(self):
        self.open("p=4&m=8&s=ZB-H1")
        self.picture(pathlib.Path(FOLDER) / "page-phone.png")


if __name__ == "__main__":
    unittest.main()
