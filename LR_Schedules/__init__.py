"""Learning-rate schedules. Every file without a leading underscore is a plug-in; --lr-schedule selects it by name."""
