"""Train on folders of images, CLIENT/CLASS/*.png (needs pillow).

The images are drawn here: circles and squares, photographed by three clients in different light.
"""

import random
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

import fedtilt as ft

LIGHT = {"north": 60, "south": 120, "island": 180}  # grey level of the background


def draw(shape: str, background: int, rng: random.Random) -> Image.Image:
    """A circle or a square near the middle of an image of 16 × 16 pixels."""
    image = Image.new("L", (16, 16), background)
    x, y, size = rng.randint(1, 3), rng.randint(1, 3), rng.randint(9, 11)
    paint = ImageDraw.Draw(image)
    (paint.ellipse if shape == "circle" else paint.rectangle)((x, y, x + size, y + size), fill=background + 60)
    return image


def write_photos(folder: Path) -> None:
    """Write folder/CLIENT/CLASS/NUMBER.png."""
    rng = random.Random(0)
    for client, background in LIGHT.items():
        for shape in ("circle", "square"):
            (folder / client / shape).mkdir(parents=True)
            for number in range(80):
                draw(shape, background, rng).save(folder / client / shape / f"{number}.png")


def main() -> None:
    """Train two methods, and print the accuracy by client."""
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder) / "photos")
        data = ft.data.images(Path(folder) / "photos", cache=folder)
        federation = ft.Federation.build(data)  # the folders are the clients
        result = ft.run(
            [ft.fedavg(), ft.fedtilt(tau=1, lam=0, mu=0.1)], federation, ft.models.mlp,
            rounds=20, participation=1.0, epochs=3, lr=0.02, eval_every=20,
        )  # fmt: skip
    table = result.to_pandas()
    print(table.pivot_table(index="client_name", columns="method", values="accuracy").round(1))


if __name__ == "__main__":
    main()
