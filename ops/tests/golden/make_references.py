"""Computes the golden references of feedstock-ops with Pillow and torchvision.

    python -m venv /tmp/golden && /tmp/golden/bin/pip install pillow==13.0.0 numpy torch==2.11.0 torchvision==0.26.0
    /tmp/golden/bin/python ops/tests/golden/make_references.py

writes to its folder:

- `scene.png`, the input of all pixel tests;
- `decode/`: files to decode, and Pillow's results as PNG;
- `resize/`;
- `augment.png`, the results one below the other; `ops.png` and `perspective.png` likewise;
- `pad/`;
- `references.json`: cases, magnitudes, policies, matrices of warps, statistics of random draws, and seeds from an independent
  implementation of `ops/src/seed.rs`.
"""

import io
import json
from pathlib import Path

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode, RandomErasing, RandomResizedCrop
from torchvision.transforms import functional as F
from torchvision.transforms.autoaugment import (
    AutoAugment,
    AutoAugmentPolicy,
    RandAugment,
    TrivialAugmentWide,
    _apply_op,
)
from torchvision.transforms.v2 import functional as v2

HERE = Path(__file__).parent


def scene(width, height, seed):
    """Returns noise with a 1/f spectrum, a gradient and a few hard-edged shapes."""
    rng = np.random.default_rng(seed)
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None, :]
    weight = 1 / np.maximum(np.hypot(fx, fy), 1 / max(width, height))
    planes = []
    for channel in range(3):
        noise = np.real(np.fft.ifft2(np.fft.fft2(rng.standard_normal((height, width))) * weight))
        planes.append(128 + 45 * noise / noise.std() + 20 * channel)
    pixels = np.stack(planes, -1)
    pixels += np.linspace(-40, 40, width)[None, :, None]
    y, x = np.mgrid[:height, :width]
    pixels[(x - width * 0.3) ** 2 + (y - height * 0.4) ** 2 < (height * 0.2) ** 2] = (220, 40, 30)
    pixels[height // 2 : height * 3 // 4, width // 2 : width * 4 // 5] += (-90, 30, 80)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def decode_cases(picture):
    folder = HERE / "decode"
    folder.mkdir(exist_ok=True)
    small = picture.crop((10, 10, 57, 43))
    names = []

    def case(name, save, transpose=False):
        buffer = io.BytesIO()
        save(buffer)
        (folder / name).write_bytes(buffer.getvalue())
        opened = Image.open(io.BytesIO(buffer.getvalue()))
        if transpose:
            opened = ImageOps.exif_transpose(opened)
        opened.convert("RGB").save(folder / f"{name}.expected.png", optimize=True)
        names.append({"file": name, "exif": transpose})

    for sub, label in ((0, "444"), (1, "422"), (2, "420")):
        case(f"{label}.jpg", lambda f: small.save(f, "JPEG", quality=90, subsampling=sub))
    case("progressive.jpg", lambda f: small.save(f, "JPEG", quality=90, progressive=True))
    case("optimized.jpg", lambda f: small.save(f, "JPEG", quality=75, optimize=True))
    case("restarts.jpg", lambda f: small.save(f, "JPEG", quality=90, restart_marker_blocks=2))
    case("grey.jpg", lambda f: small.convert("L").save(f, "JPEG", quality=90))
    case("cmyk.jpg", lambda f: small.convert("CMYK").save(f, "JPEG", quality=90))
    case("rgb.jpg", lambda f: small.save(f, "JPEG", quality=90, keep_rgb=True))
    for value in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = value
        case(f"exif{value}.jpg", lambda f: small.save(f, "JPEG", quality=90, exif=exif), True)
    for mode in ("1", "L", "LA", "RGB", "RGBA", "P"):
        converted = small.convert(mode)
        if "A" in mode:
            converted.putalpha(small.convert("L"))
        case(f"{mode.lower()}.png", lambda f: converted.save(f, "PNG"))
    case("p_transparent.png", lambda f: small.convert("P").save(f, "PNG", transparency=3))
    case("lossy.webp", lambda f: small.save(f, "WEBP", quality=85))
    case("lossless.webp", lambda f: small.save(f, "WEBP", lossless=True))
    # Quarters that differ so much that each gets separate codes, after transforms and after a palette.
    flat = picture.quantize(5).convert("RGB")
    quarters = Image.new("RGB", (2 * picture.width, 2 * picture.height))
    quarters.paste(picture, (0, 0))
    quarters.paste(flat, (picture.width, 0))
    quarters.paste(flat.transpose(Image.Transpose.ROTATE_180), (0, picture.height))
    quarters.paste(picture.convert("L").convert("RGB"), (picture.width, picture.height))
    few = picture.resize(quarters.size).quantize(12).convert("RGB")
    for name, each in (("groups", quarters), ("palette", few)):
        case(f"lossless_{name}.webp", lambda f: each.save(f, "WEBP", lossless=True, method=6, quality=100))
    translucent = small.copy()
    translucent.putalpha(small.convert("L"))
    case("alpha.webp", lambda f: translucent.save(f, "WEBP", quality=85))
    return names


def resize_cases(picture):
    folder = HERE / "resize"
    folder.mkdir(exist_ok=True)
    cases = []

    def case(chain, result):
        name = f"{len(cases)}.png"
        result.save(folder / name, optimize=True)
        cases.append({"chain": chain, "file": name})

    modes = {
        "bilinear": InterpolationMode.BILINEAR,
        "bicubic": InterpolationMode.BICUBIC,
        "lanczos": InterpolationMode.LANCZOS,
        "nearest": InterpolationMode.NEAREST,
    }
    for name, mode in modes.items():
        for size in ([40, 56], [73, 150], [120, 31]):
            case(f"decode_image,resize:{size[0]}x{size[1]}:filter={name}", F.resize(picture, size, mode))
        resized = F.resize(picture, 60, mode)
        case(f"decode_image,resize:60:filter={name},center_crop:48", F.center_crop(resized, [48, 48]))
        cropped = F.center_crop(picture, [51, 67])
        case(
            f"decode_image,center_crop:51x67,resize:32x32:filter={name}",
            F.resize(cropped, [32, 32], mode),
        )
    case("decode_image,center_crop:91x50", F.center_crop(picture, [91, 50]))
    case("decode_image,center_crop:30x111", F.center_crop(picture, [30, 111]))
    case("decode_image,resize:33,center_crop:48", F.center_crop(F.resize(picture, 33), [48, 48]))
    # A fixed draw: the whole image's area at its own aspect ratio is the fallback, the whole image.
    case(
        "decode_image,random_resized_crop:64:scale=1..1:ratio=1.2..1.2",
        F.resize(picture, [64, 64], InterpolationMode.BILINEAR),
    )
    return cases


def augment_cases(picture):
    picture = picture.crop((8, 5, 72, 53))
    outcomes, cases = [], []

    def case(op, magnitude, interpolation, result):
        outcomes.append(np.asarray(result))
        cases.append({"op": op, "magnitude": magnitude, "interpolation": interpolation})

    for op, magnitudes in {
        "ShearX": (0.3, -0.99, 0.09),
        "ShearY": (0.3, -0.99, 0.09),
        "TranslateX": (13.59, -32.0),
        "TranslateY": (13.59, -32.0),
        "Rotate": (9.0, -30.0, 90.0, 135.0),
    }.items():
        for magnitude in magnitudes:
            for mode in (InterpolationMode.NEAREST, InterpolationMode.BILINEAR):
                case(op, magnitude, mode.value, _apply_op(picture, op, magnitude, mode, [10, 200, 30]))
    for op, magnitudes in {
        "Identity": (0.0,),
        "Brightness": (0.27, -0.27, 0.99, -0.99),
        "Color": (0.27, -0.27, 0.99, -0.99),
        "Contrast": (0.27, -0.27, 0.99, -0.99),
        "Sharpness": (0.27, -0.27, 0.99, -0.99),
        "Posterize": (8.0, 7.0, 4.0, 2.0),
        "Solarize": (255.0, 178.5, 0.0),
        "AutoContrast": (0.0,),
        "Equalize": (0.0,),
        "Invert": (0.0,),
    }.items():
        for magnitude in magnitudes:
            case(op, magnitude, "nearest", _apply_op(picture, op, magnitude, InterpolationMode.NEAREST, None))
    for turn in (0.1, -0.1, 0.5, -0.37):
        case("Hue", turn, "nearest", F.adjust_hue(picture, turn))
    Image.fromarray(np.concatenate(outcomes)).save(HERE / "augment.png", optimize=True)
    return cases


def op_cases(picture):
    """Chains whose draws are fixed, all of one size."""
    picture = F.center_crop(picture, [48, 64])
    outcomes, cases = [], []

    def case(ops, result):
        outcomes.append(np.asarray(result))
        cases.append(f"decode_image,center_crop:48x64,{ops}")

    case("vertical_flip:1", v2.vertical_flip(picture))
    case("horizontal_flip:1,vertical_flip:1", picture.transpose(Image.Transpose.ROTATE_180))
    case("grayscale:1", v2.rgb_to_grayscale(picture, 3))
    for kernel_size, sigma in ((3, 0.4), (5, 1.3), (9, 0.1), (23, 2.0), (23, 10.0), (47, 30.0)):
        ops = f"gaussian_blur:{kernel_size}:{sigma}..{sigma}"
        case(ops, v2.gaussian_blur(picture, [kernel_size, kernel_size], [sigma, sigma]))
    for factor in (0.0, 0.5, 1.0, 2.0, 5.5):
        case(f"adjust_sharpness:{factor}:1", v2.adjust_sharpness(picture, factor))
    for threshold in (0, 100, 128.5, 255, 256):
        case(f"solarize:{threshold}:1", v2.solarize(picture, threshold))
    for bits in (1, 4, 8):
        case(f"posterize:{bits}:1", v2.posterize(picture, bits))
    case("equalize:1", v2.equalize(picture))
    case("autocontrast:1", v2.autocontrast(picture))
    case("invert:1", v2.invert(picture))
    for mode in (InterpolationMode.NEAREST, InterpolationMode.BILINEAR):
        style = f"interpolation={mode.value}"
        for angle in (0, 17.3, -45, 90, 180, 359):
            case(f"rotate:{angle}..{angle}:{style}", v2.rotate(picture, angle, mode))
        case(
            f"rotate:30..30:{style}:center=10/40.5:fill=200",
            v2.rotate(picture, 30, mode, center=[10, 40.5], fill=200),
        )
        for angle, scale, shear in (
            (0, 1.0, (0, 0)),
            (0, 1.7, (0, 0)),
            (0, 0.6, (0, 0)),
            (25, 1.0, (0, 0)),
            (-130, 0.8, (12, 0)),
            (5, 1.25, (-20, 7)),
        ):
            ops = f"affine:{angle}..{angle}:scale={scale}..{scale}:shear={shear[0]}/{shear[0]}/{shear[1]}/{shear[1]}"
            case(f"{ops}:{style}:fill=9/8/7", v2.affine(picture, angle, [0, 0], scale, list(shear), mode, [9, 8, 7]))
        moved = v2.affine(picture, 40, [0, 0], 0.9, [0, 0], mode, 255, [3, 3])
        case(f"affine:40..40:scale=0.9..0.9:{style}:fill=255:center=3/3", moved)
    case("perspective:0.5:0", picture)
    case("random_apply:[invert:1,solarize:100:1]:1", v2.solarize(v2.invert(picture), 100))
    case("random_apply:[invert:1,solarize:100:1]:0", picture)
    case("random_choice:[invert:1,vertical_flip:1]:probabilities=0/2", v2.vertical_flip(picture))
    Image.fromarray(np.concatenate(outcomes)).save(HERE / "ops.png", optimize=True)
    return cases


def pad_cases(picture):
    folder = HERE / "pad"
    folder.mkdir(exist_ok=True)
    picture = F.center_crop(picture, [12, 17])
    cases = []
    for padding, text in ((5, "5"), ([3, 7], "3/7"), ([1, 0, 20, 30], "1/0/20/30")):
        for mode in ("constant", "edge", "reflect", "symmetric"):
            fill = [10, 200, 30] if mode == "constant" else 0
            name = f"{len(cases)}.png"
            v2.pad(picture, padding, fill, mode).save(folder / name, optimize=True)
            ops = f"pad:{text}:padding_mode={mode}" + (":fill=10/200/30" if mode == "constant" else "")
            cases.append({"chain": f"decode_image,resize:80x96,center_crop:12x17,{ops}", "file": name})
    return cases


def warp_cases(picture):
    """Matrices of moves, and images from several sides."""
    picture = F.center_crop(picture, [48, 64])
    moves = []
    for angle, translate, scale, shear, center in (
        (0.0, (0, 0), 1.0, (0.0, 0.0), (32.0, 24.0)),
        (30.0, (5, -7), 1.0, (0.0, 0.0), (32.0, 24.0)),
        (-95.0, (-12, 3), 0.7, (10.0, -20.0), (1.5, 60.0)),
        (180.0, (1, 1), 2.5, (-35.0, 4.0), (0.0, 0.0)),
    ):
        matrix = F._get_inverse_affine_matrix(list(center), angle, list(translate), scale, list(shear))
        moves.append(
            {"angle": angle, "translate": translate, "scale": scale, "shear": shear, "center": center, "matrix": matrix}
        )
    outcomes, sides = [], []
    start = [[0, 0], [63, 0], [63, 47], [0, 47]]
    for corners in (
        [[0, 0], [63, 0], [63, 47], [0, 47]],
        [[10, 3], [60, 9], [50, 40], [2, 44]],
        [[0, 11], [48, 0], [63, 36], [15, 47]],
        [[15, 11], [48, 11], [63, 47], [0, 47]],
    ):
        coefficients = F._get_perspective_coeffs(start, corners)
        for mode in (InterpolationMode.NEAREST, InterpolationMode.BILINEAR):
            outcomes.append(np.asarray(F.perspective(picture, start, corners, mode, [10, 200, 30])))
            sides.append({"corners": corners, "coefficients": coefficients, "interpolation": mode.value})
    Image.fromarray(np.concatenate(outcomes)).save(HERE / "perspective.png", optimize=True)
    return {"moves": moves, "sides": sides}


def policies():
    """The operations of AutoAugment's policies, with their magnitudes for 48 × 64 pixels."""
    tables = {}
    for policy in AutoAugmentPolicy:
        op = AutoAugment(policy)
        space = op._augmentation_space(10, (48, 64))

        def described(name, probability, bin):
            values, signed = space[name]
            magnitude = 0.0 if bin is None else float(values[bin])
            return {"op": name, "probability": probability, "magnitude": magnitude, "signed": signed}

        tables[policy.value] = [[described(*each) for each in pair] for pair in op.policies]
    return tables


def magnitudes():
    def table(space):
        return {
            name: [float(x) for x in values] if values.ndim else [0.0] * 31 for name, (values, _) in space.items()
        }

    return {
        "rand_augment": table(RandAugment()._augmentation_space(31, (48, 64))),
        "trivial_augment": table(TrivialAugmentWide()._augmentation_space(31)),
    }


def draws():
    torch.manual_seed(1)
    n = 20_000
    blank = torch.zeros(1, 300, 400)
    crops = np.array([RandomResizedCrop.get_params(blank, [0.08, 1], [3 / 4, 4 / 3]) for _ in range(n)], float)
    areas, logs = crops[:, 2] * crops[:, 3] / 120_000, np.log(crops[:, 3] / crops[:, 2])
    centre = (crops[:, 1] + crops[:, 3] / 2) / 400
    blank = torch.zeros(3, 224, 224)
    erased = np.array(
        [RandomErasing.get_params(blank, (0.02, 0.33), (0.3, 3.3), [0.0])[:4] for _ in range(n)], float
    )
    share, tall = erased[:, 2] * erased[:, 3] / 224**2, np.log(erased[:, 2] / erased[:, 3])

    def moments(values):
        return {"mean": float(values.mean()), "std": float(values.std()), "draws": n}

    return {
        "random_resized_crop": {"area": moments(areas), "log_ratio": moments(logs), "centre": moments(centre)},
        "random_erasing": {"area": moments(share), "log_ratio": moments(tall)},
    }


def seeds():
    mask, gamma = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def absorb(state, word):
        return mix(((state ^ word) + gamma) & mask)

    def salt(tag, text):
        """Tag 1: the output's name of a further map of a column; tag 2: a key."""
        data = text.encode()
        state = absorb(absorb(0, tag), len(data))
        for at in range(0, len(data), 8):
            state = absorb(state, int.from_bytes(data[at : at + 8], "little"))
        return state

    def first_word(seed, epoch, sample, *ops, salted=None):
        """The last of `ops` draws; the others are the ops that it is in."""
        state = absorb(absorb(absorb(0, seed), epoch), sample)
        if salted is not None:
            state = absorb(state, salt(*salted))
        for op in ops:
            state = absorb(state, op)
        words = []
        for _ in range(4):
            state = (state + gamma) & mask
            words.append(mix(state))
        total = (words[0] + words[3]) & mask
        return ((((total << 23) | (total >> 41)) & mask) + words[0]) & mask

    cases = [(0, 0, 0, 0), (7, 0, 42, 0), (7, 0, 42, 1), (7, 1, 42, 1), (2**64 - 1, 2**63, 10**12, 5)]
    plain = [{"of": [str(x) for x in case], "first": str(first_word(*case))} for case in cases]
    texts = [(1, "second"), (2, "second"), (2, "pair"), (1, "a name of more than eight bytes"), (2, "Schlüssel")]
    salted = [
        {"tag": tag, "text": text, "first": str(first_word(7, 1, 42, 1, salted=(tag, text)))} for tag, text in texts
    ]
    paths = [(3, 0), (3, 1), (1, 3), (5, 2, 0)]
    within = [{"path": path, "first": str(first_word(7, 1, 42, *path))} for path in paths]
    return {"plain": plain, "salted": salted, "within": within}


def main():
    picture = scene(96, 80, 1)
    picture.save(HERE / "scene.png", optimize=True)
    references = {
        "versions": {"pillow": PIL.__version__, "torchvision": torchvision.__version__},
        "decode": decode_cases(picture),
        "resize": resize_cases(picture),
        "augment": augment_cases(picture),
        "ops": op_cases(picture),
        "pad": pad_cases(picture),
        "warps": warp_cases(picture),
        "policies": policies(),
        "magnitudes": magnitudes(),
        "draws": draws(),
        "seeds": seeds(),
    }
    (HERE / "references.json").write_text(json.dumps(references, indent=1) + "\n")


if __name__ == "__main__":
    main()
