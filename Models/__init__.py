"""CNN models. Every file without a leading underscore is a plug-in; --model selects it by its file name."""
