"""CNN models. Every file without a leading underscore is a plug-in, found by its name."""
