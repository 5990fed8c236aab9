"""Which annotation belongs to which image, by their ids: each to one, and nothing left over."""

from array import array
from collections.abc import Mapping

import numpy as np

from task2vec.errors import DataError


def take_id(record: Mapping[str, object], field: str, where: str) -> int:
    """The whole number in a field of a record, also if it is written as text of digits; `where` begins the message.

    Example:
        >>> take_id({"image_id": 17}, "image_id", "train.json"), take_id({"imageId": "17"}, "imageId", "train.json")
        (17, 17)
    """
    value = record.get(field)
    if type(value) is str and value.isdecimal() and value.isascii() and str(int(value[:20])) == value:
        value = int(value)
    if type(value) is not int or not 0 <= value < 1 << 63:
        found = f"{value!r} as its {field!r}" if field in record else f"no field {field!r}"
        raise DataError(
            f"{where}: the record has {found} where a whole number is expected, so nothing tells what belongs to it. "
            "Take the dataset's own file, unchanged."
        )
    return value


def match_annotations(place: object, image_ids: array, annotated_ids: array) -> np.ndarray:
    """For every annotation the row of its image; every image must have one annotation, and the other way round.

    Args:
        place: The file, for messages; its arrays are "images" and "annotations".
        image_ids: The id of every image record.
        annotated_ids: The image id of every annotation record.

    Example:
        >>> match_annotations("train.json", array("q", [30, 4, 12]), array("q", [12, 30, 4])).tolist()
        [2, 0, 1]
    """
    ids, wanted = np.asarray(image_ids), np.asarray(annotated_ids)
    order = np.argsort(ids, kind="stable")
    again = np.flatnonzero(ids[order[1:]] == ids[order[:-1]])
    if len(again):
        second = order[again + 1].min()
        first = np.flatnonzero(ids == ids[second])[0]
        raise DataError(
            f"{place}, images, record {second}: the id {ids[second]} is that of record {first} already, so labels may "
            "belong to either image. Take the dataset's own file, unchanged."
        )
    spot = np.searchsorted(ids, wanted, sorter=order)
    unknown = np.flatnonzero(np.append(ids, -1)[np.append(order, len(ids))[spot]] != wanted)
    if len(unknown):
        raise DataError(
            f"{place}, annotations, record {unknown[0]}: the image id {wanted[unknown[0]]} has no entry in images, so "
            "its label belongs to nothing. Take the dataset's own file, unchanged."
        )
    rows = order[spot]
    times = np.bincount(rows, minlength=len(ids))
    if (times > 1).any():
        row = np.flatnonzero(times > 1)[0]
        records = np.flatnonzero(rows == row)
        raise DataError(
            f"{place}, annotations, record {records[1]}: the image {ids[row]} was labelled in record {records[0]} "
            "already, and which of the two holds is unknown. Take the dataset's own file, unchanged."
        )
    if (times == 0).any():
        row = np.flatnonzero(times == 0)[0]
        raise DataError(
            f"{place}, images, record {row}: the image {ids[row]} has no annotation, so its label is unknown. Take the "
            "dataset's own file, unchanged."
        )
    return rows
