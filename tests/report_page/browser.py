"""Opens pages in headless Chromium, by the DevTools protocol over a pipe, and checks what it sees.

    python3 browser.py CHROMIUM FOLDER

Each page NAME.html in the folder has its report beside it in NAME.json. Screenshots are left in FOLDER/shots. Needs the
standard library only. Exit status 1 and a list of what is wrong, or 0.
"""

import base64
import fcntl
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time

WIDTHS = (390, 1280)
THEMES = ("light", "dark")
DEADLINE = 400


class Browser:
    """A browser, and one tab of it."""

    def __init__(self, chromium, profile):
        # The browser reads commands from its descriptor 3 and writes to 4, so nothing else may be there.
        pairs = [[fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in os.pipe()] for _ in range(2)]
        (its_input, self.input), (self.output, its_output) = pairs
        os.dup2(its_input, 3)
        os.dup2(its_output, 4)
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                 "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking",
                 "--disable-component-update", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen([chromium, *flags, "about:blank"], pass_fds=(3, 4),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        for fd in (3, 4, its_input, its_output):
            os.close(fd)
        self.buffer, self.events, self.last, self.session = b"", [], 0, None
        self.deadline = time.monotonic() + DEADLINE
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def message(self):
        """The next message of the browser."""
        while b"\0" not in self.buffer:
            left = self.deadline - time.monotonic()
            if left <= 0 or not select.select([self.output], [], [], left)[0]:
                raise TimeoutError(f"the browser did not answer within {DEADLINE} s")
            part = os.read(self.output, 1 << 20)
            if not part:
                raise EOFError("the browser is gone")
            self.buffer += part
        one, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **params):
        self.last += 1
        command = {"id": self.last, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        data = json.dumps(command).encode() + b"\0"
        while data:
            data = data[os.write(self.input, data):]
        while True:
            answer = self.message()
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        """What happened while a page was loaded."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())
        return self.events

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def key(self, name, code):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
        except (OSError, EOFError, TimeoutError, RuntimeError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


FIGURES = """[...document.querySelectorAll('[data-path]')].map(it =>
    [it.dataset.path, it.dataset.value, it.dataset.factor, it.textContent])"""

# What the bars, points and lines of the plots say: an element's own figures against its summary's.
ROWS = """[...document.querySelectorAll('svg.plot .row[data-gib-median]')].map(it =>
    [it.dataset.backend, it.dataset.cache, it.dataset.gibMin, it.dataset.gibMedian, it.dataset.gibMax])"""

# Text whose colour is too close to what is behind it, by WCAG's formula; what is meant to lie outside is left out.
CONTRAST = """(() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgba = color => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
        return canvas.getImageData(0, 0, 1, 1).data;
    };
    const light = ([r, g, b]) => [r, g, b].map(it => it / 255)
        .map(it => it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4)
        .reduce((sum, it, i) => sum + it * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = it => {
        for (; it; it = it.parentElement) {
            const color = rgba(getComputedStyle(it).backgroundColor);
            if (color[3] === 255) return color;
        }
        return [255, 255, 255];
    };
    const bad = new Set();
    for (const it of document.querySelectorAll('body *')) {
        const own = [...it.childNodes].some(node => node.nodeType === 3 && node.data.trim());
        if (!own || it.tagName === 'SCRIPT' || it.tagName === 'title' || it.tagName === 'desc') continue;
        const style = getComputedStyle(it);
        const color = rgba(it instanceof SVGElement ? style.fill : style.color);
        const [a, b] = [light(color), light(behind(it))].sort((a, b) => b - a);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) bad.add(`${it.tagName}.${it.getAttribute('class')}: ${ratio.toFixed(2)}`);
    }
    return [...bad];
})()"""

# Text in plots that leaves its plot, or lies on other text of its plot.
CROWDED = """(() => {
    const bad = [];
    for (const plot of document.querySelectorAll('svg.plot')) {
        const frame = plot.getBoundingClientRect();
        const texts = [...plot.querySelectorAll('text')].filter(it => getComputedStyle(it).display !== 'none');
        const boxes = texts.map(it => [it.getBoundingClientRect(), it.textContent]);
        boxes.forEach(([a, text], i) => {
            if (a.left < frame.left - 14 || a.right > frame.right + 14) bad.push(`outside: ${text}`);
            for (const [b, other] of boxes.slice(i + 1)) {
                const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                if (wide > 1 && high > 5) bad.push(`on each other: ${text} | ${other}`);
            }
        });
    }
    return bad;
})()"""

BROKEN = """[...document.querySelectorAll('svg *')].flatMap(it => [...it.attributes])
    .filter(it => /NaN|Infinity|inf|undefined/.test(it.value) && !it.name.startsWith('data-'))
    .map(it => `${it.name}=${it.value}`)"""

FOCUS = """(() => {
    const it = document.activeElement, style = getComputedStyle(it), box = it.getBoundingClientRect();
    const seen = box.width > 0 && box.right > 0 && box.bottom > 0;
    return [it.className || it.tagName, seen && style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2];
})()"""


def at(report, path):
    """What a JSON pointer leads to."""
    for key in path.split("/")[1:]:
        report = report[int(key) if isinstance(report, list) else key.replace("~1", "/").replace("~0", "~")]
    return report


def check(browser, page, width, theme, shots):
    """What is wrong with a page at one width in one theme."""
    report = json.loads(page.with_suffix(".json").read_text())
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                 mobile=width < 600)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    wrong = []
    for event in browser.open(page.as_uri()):
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if url != page.as_uri() and not url.startswith("data:"):
                wrong.append(f"it asked for {url}")
        elif method in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            wrong.append(f"the console says {json.dumps(params)[:300]}")
    for path, value, factor, text in browser.evaluate(FIGURES):
        there = at(report, path)
        if float(value) != float(there) or abs(float(text) - there * float(factor)) > abs(there * float(factor)) * 0.006:
            wrong.append(f"{path} is {there}, shown as {text} ({value} x {factor})")
    finite = [it for it in report["summary"] if (it["gib_per_s"] or {}).get("median") is not None]
    drawn = [[*row[:2], *map(float, row[2:])] for row in browser.evaluate(ROWS)]
    want = [[visible(it["backend"]), it["cache"], *(it["gib_per_s"][key] for key in ("min", "median", "max"))]
            for it in finite]
    if drawn != want:
        wrong.append(f"the plot has {drawn}, the report {want}")
    if json.loads(browser.evaluate("document.getElementById('report').textContent")) != report:
        wrong.append("the report in the page is another one")
    across = browser.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
    if across > width:
        wrong.append(f"it is {across} pixels wide")
    wrong += [f"contrast of {it}" for it in browser.evaluate(CONTRAST)]
    wrong += [f"a plot has {it}" for it in browser.evaluate(BROKEN)]
    if page.stem not in ("hostile", "extreme"):
        wrong += [f"text in a plot is {it}" for it in browser.evaluate(CROWDED)]
    browser.key("Tab", 9)
    focus = browser.evaluate(FOCUS)
    if focus != ["skip", True]:
        wrong.append(f"the first stop of the keyboard is {focus}")
    stops = browser.evaluate("document.querySelectorAll('nav a, main a, [tabindex]').length")
    for _ in range(min(stops, 40)):
        browser.key("Tab", 9)
        name, seen = browser.evaluate(FOCUS)
        if not seen:
            wrong.append(f"the focus on {name} cannot be seen")
    browser.evaluate("document.activeElement.blur(), scrollTo(0, 0), "
                     "document.querySelectorAll('.scroll').forEach(it => { it.scrollLeft = 0 })")
    height = min(browser.evaluate("document.documentElement.scrollHeight"), 16000)
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    image = browser.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
    (shots / f"{page.stem}-{width}-{theme}.png").write_bytes(base64.b64decode(image))
    return [f"{page.stem} at {width} pixels, {theme}: {it}" for it in dict.fromkeys(wrong)]


def visible(text):
    """A report's text as a page shows it."""
    hidden = "\u061c\u200e\u200f" + "".join(map(chr, [*range(0x202a, 0x202f), *range(0x2066, 0x206a)]))
    bad = lambda c: c not in "\n\t" and (ord(c) < 32 or 127 <= ord(c) < 160 or c in hidden)
    return "".join(f"\\u{{{ord(c):x}}}" if bad(c) else c for c in text)


def main():
    chromium, folder = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    shots = folder / "shots"
    shots.mkdir(exist_ok=True)
    pages = sorted(folder.glob("*.html"))
    wrong, seen = [], 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(chromium, profile)
        try:
            for page in pages:
                for width in WIDTHS:
                    for theme in THEMES:
                        wrong += check(browser, page, width, theme, shots)
                        seen += 1
        finally:
            browser.close()
    print(*wrong, sep="\n")
    print(f"{len(pages)} pages looked at in {seen} ways, {len(wrong)} faults")
    return 1 if wrong or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
