"""Writes the images of the tests, and beside each its pixels as Pillow reads them for a processor of transformers: NAME.rgb holds
width and height (u32, little endian), then red, green and blue. Needs Pillow 12."""

import os
import random
import struct

from PIL import Image, ImageOps

os.chdir(os.path.dirname(os.path.abspath(__file__)))
random.seed(7)
W, H = 19, 13


def picture(mode="RGB", size=(W, H)):
    """A gradient with one bright corner, so that no rotation or flip looks like another."""
    bands = []
    for band in mode:
        out = Image.new("L", size)
        for y in range(size[1]):
            for x in range(size[0]):
                value = {"R": x * 12, "G": y * 18, "B": 255 - x * 6 - y * 6, "L": x * 6 + y * 8, "A": (x * y * 3) % 256}[band]
                out.putpixel((x, y), 250 if x < 4 and y < 4 and band != "A" else value)
        bands.append(out)
    return Image.merge(mode, bands)


def save(name, image, **options):
    image.save(name, **options)
    with Image.open(name) as read:
        rgba = ImageOps.exif_transpose(read).convert("RGBA")
    rgb = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    with open(name + ".rgb", "wb") as out:
        out.write(struct.pack("<II", *rgb.size) + rgb.tobytes())


def exif(orientation):
    data = Image.Exif()
    data[0x0112] = orientation
    return data


save("rgb.png", picture())
save("rgba.png", picture("RGBA"))
save("grey.png", picture("L"))
save("grey_alpha.png", picture("LA"))
save("grey1.png", picture("L").convert("1"))
palette = picture().quantize(16)
save("palette.png", palette, transparency=3)
save("exif6.png", picture(), exif=exif(6))
save("rgb.jpg", picture(), quality=95, subsampling=0)
save("photo.jpg", picture(size=(64, 48)), quality=85, subsampling=2)
save("progressive.jpg", picture(), quality=95, subsampling=0, progressive=True)
save("grey.jpg", picture("L"), quality=95)
save("cmyk.jpg", picture().convert("CMYK"), quality=95)
for o in range(1, 9):
    save(f"exif{o}.jpg", picture(), quality=95, subsampling=0, exif=exif(o))
save("lossless.webp", picture(), lossless=True)
save("lossy.webp", picture(), quality=90)
save("alpha.webp", picture("RGBA"), lossless=True, exact=True)
save("exif6.webp", picture(), lossless=True, exif=exif(6))
save("still.gif", palette)
save("transparent.gif", palette, transparency=3)
frames = [picture(), picture().rotate(180), picture().rotate(90)]
save("animated.gif", frames[0].quantize(16), save_all=True, append_images=frames[1:], duration=100)
frames[0].save("animated.png", save_all=True, append_images=frames[1:], duration=100)
frames[0].save("animated.webp", save_all=True, append_images=frames[1:], duration=100)
