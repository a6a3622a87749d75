"""a"""


def of(planned):
    return ""
