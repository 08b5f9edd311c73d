package cron

import (
	"strings"
	"testing"
)

func TestATextMeansItsFields(t *testing.T) {
	t.Parallel()
	all := Fields{Seconds: 1, Minutes: 1<<60 - 1, Hours: 1<<24 - 1, Days: 1<<32 - 2, Months: 1<<13 - 2, Weekdays: 1<<7 - 1, AnyDay: true, AnyWeekday: true}
	with := func(change func(*Fields)) Fields {
		f := all
		change(&f)
		return f
	}
	for text, want := range map[string]Fields{
		"* * * * *":   all,
		"* * * * * *": with(func(f *Fields) { f.Seconds = 1<<60 - 1 }),
		"30 2 * * 1-5": with(func(f *Fields) {
			f.Minutes, f.Hours, f.Weekdays, f.AnyWeekday = 1<<30, 1<<2, 0b111110, false
		}),
		"*/15 10 0 1,15 JAN *": with(func(f *Fields) {
			f.Seconds, f.Minutes, f.Hours, f.Days, f.Months, f.AnyDay = 1|1<<15|1<<30|1<<45, 1<<10, 1, 1<<1|1<<15, 1<<1, false
		}),
		"0 0 */2 * ?": with(func(f *Fields) {
			f.Minutes, f.Hours, f.AnyDay = 1, 1, false
			f.Days = 0
			for d := 1; d <= 31; d += 2 {
				f.Days |= 1 << d
			}
		}),
		"@daily": with(func(f *Fields) { f.Minutes, f.Hours = 1, 1 }),
	} {
		if got, fault := Parse(text); fault != "" || got != want {
			t.Errorf("%q is %+v (%s), want %+v", text, got, fault, want)
		}
	}
}

func TestAFaultNamesTheField(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "must not be empty",
		"  ":                     "must not be empty",
		"* * *":                  "it has 3",
		"1 2 3 4 5 6 7":          "it has 7",
		"60 * * * *":             `the minute is "60"`,
		"* 24 * * *":             `the hour is "24"`,
		"* * 0 * *":              `the day of the month is "0"`,
		"* * * 13 *":             `the month is "13"`,
		"* * * * 7":              `the day of the week is "7"`,
		"61 * * * * *":           `the second is "61"`,
		"*/0 * * * *":            `the minute is "*/0"`,
		"5-1 * * * *":            `the minute is "5-1"`,
		"*-5 * * * *":            `the minute is "*-5"`,
		", * * * *":              `the minute is ","`,
		"1,,2 * * * *":           `the minute is "1,,2"`,
		"a * * * *":              `the minute is "a"`,
		"TZ=UTC * * * * *":       "time_zone",
		"CRON_TZ=":               "time_zone",
		"@every 5m":              "every_ms",
		"@fortnightly":           "@daily",
		"99999999999999 * * * *": `the minute is "99999999999999"`,
	} {
		if _, fault := Parse(text); !strings.Contains(fault, want) {
			t.Errorf("%q: %q, want %q in it", text, fault, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"* * * * *", "*/15 0-3 1,2 JAN-DEC SUN", "@daily", "TZ=", "? ? ? ? ? ?", "1/1 * * * *"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, fault := Parse(text)
		if fault != "" {
			if got != (Fields{}) {
				t.Errorf("%q is refused and yet %+v", text, got)
			}
			return
		}
		in := func(set uint64, low, high int) bool { return set != 0 && set&^(1<<(high+1)-1<<low) == 0 }
		if !in(got.Seconds, 0, 59) || !in(got.Minutes, 0, 59) || !in(uint64(got.Hours), 0, 23) ||
			!in(uint64(got.Days), 1, 31) || !in(uint64(got.Months), 1, 12) || !in(uint64(got.Weekdays), 0, 6) {
			t.Errorf("%q is %+v", text, got)
		}
	})
}
