"""Write the metadata of a TensorFlow Lite model, which MediaPipe and TensorFlow Lite's Task Library read.

The metadata is a flatbuffer with TensorFlow Lite's schema `metadata_schema.fbs` ("M001"). The class names are a file in the
zip archive at the end of the model; the metadata names this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import flatbuffers

from cnn_harness.base.storage import run_files

BUFFER = "TFLITE_METADATA"  # readers look for a buffer with this name
_SCHEMA = b"M001"
_OLDEST_READER = "1.0.0"  # version of the schema that introduced everything that is written here
_AXIS_LABELS, _RGB = 2, 1  # AssociatedFileType, ColorSpaceType
_FEATURE, _IMAGE = 1, 2  # ContentProperties
_NORMALISATION = 1  # ProcessUnitOptions


class _Writer(flatbuffers.Builder):
    """Writes tables and vectors. Each method returns the position of what it wrote. Parts are written before the whole."""

    def table(self, parts: Mapping[int, int], kinds: Mapping[int, int] | None = None, *, numbers: bool = False) -> int:
        """Write a table. The keys are the numbers of fields in the schema. The values of `parts` are positions or, with
        `numbers`, 32-bit numbers; those of `kinds` are enumerators."""
        self.StartObject(1 + max((*parts, *(kinds or ())), default=-1))
        for field, value in parts.items():
            (self.PrependUint32Slot if numbers else self.PrependUOffsetTRelativeSlot)(field, value, 0)
        for field, value in (kinds or {}).items():
            self.PrependUint8Slot(field, value, 0)
        return self.EndObject()

    def floats(self, *values: float) -> int:
        """Write a vector of floats."""
        self.StartVector(4, len(values), 4)
        for value in reversed(values):
            self.PrependFloat32(value)
        return self.EndVector()

    def tables(self, *positions: int) -> int:
        """Write a vector of tables."""
        self.StartVector(4, len(positions), 4)
        for position in reversed(positions):
            self.PrependUOffsetTRelative(position)
        return self.EndVector()


def metadata(image: str, side: int, probabilities: str, files: Sequence[str]) -> bytes:
    """Return the metadata. `image` and `probabilities` name input and output, `side` is the side of the input in pixels, and
    `files` are the files in the archive.

    Mean and deviation are 0 and 1, because the graph itself normalises the image.
    """
    write = _Writer()
    text = write.CreateString
    normalisation = write.table({0: write.floats(0.0), 1: write.floats(1.0)})
    pixels = write.table({1: write.table({0: side, 1: side}, numbers=True)}, {0: _RGB})
    tensor = write.table({
        0: text(image),
        1: text("pixels from 0 to 255; the model normalises them"),
        3: write.table({1: pixels}, {0: _IMAGE}),
        4: write.tables(write.table({1: normalisation}, {0: _NORMALISATION})),
        5: write.table({0: write.floats(255.0), 1: write.floats(0.0)}),
    })  # fmt: skip
    names = [write.table({0: text(file)}, {2: _AXIS_LABELS}) for file in files if file == run_files.EXPORT[0]]
    answer = write.table({
        0: text(probabilities),
        3: write.table({1: write.table({})}, {0: _FEATURE}),
        5: write.table({0: write.floats(1.0), 1: write.floats(0.0)}),
        6: write.tables(*names),
    })  # fmt: skip
    graph = write.table({2: write.tables(tensor), 3: write.tables(answer)})
    about = text("An image classifier. preprocessing.json in this file describes how to prepare a photo.")
    root = write.table({0: text("image classifier"), 1: about, 3: write.tables(graph), 7: text(_OLDEST_READER)})
    write.Finish(root, file_identifier=_SCHEMA)
    return bytes(write.Output())
