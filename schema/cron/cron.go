// Package cron reads cron texts into the numbers that every replica computes
// with.
//
// What a text means is settled once, where a request is checked: the state
// machine never sees the text as anything but a text. So a parser that reads a
// text otherwise than an older one cannot make two replicas differ, and a log
// means for ever what it meant.
//
// A text has five fields (minute, hour, day of the month, month, day of the
// week), or six with a second in front, or is one of @hourly, @daily,
// @midnight, @weekly, @monthly, @yearly and @annually. Both day fields follow
// crontab: a day matches if both match, but if neither is * it is enough that
// one does.
//
// Everything here is pure and safe from any goroutine.
package cron

import (
	"fmt"
	"strings"

	"github.com/robfig/cron/v3"
)

// CharsMax bounds a text, in code points.
const CharsMax = 256

// Fields is what a text says: bit n of a set is the value n.
type Fields struct {
	Seconds  uint64 // 0 to 59
	Minutes  uint64 // 0 to 59
	Hours    uint32 // 0 to 23
	Days     uint32 // 1 to 31
	Months   uint32 // 1 to 12
	Weekdays uint32 // 0 to 6, 0 is Sunday
	// AnyDay and AnyWeekday say that the field is *: then the other one alone
	// decides which days match.
	AnyDay     bool
	AnyWeekday bool
}

var parser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// star is the bit by which the parser remembers that a field is *.
const star = 1 << 63

// fields in their order, with what they take.
var fields = [...]struct{ name, takes string }{
	{"second", "0 to 59"},
	{"minute", "0 to 59"},
	{"hour", "0 to 23"},
	{"day of the month", "1 to 31"},
	{"month", "1 to 12 or JAN to DEC"},
	{"day of the week", "0 to 6 or SUN to SAT, where 0 is Sunday"},
}

// Parse reads a text. fault is empty, or says for people which field is wrong
// and what it takes.
func Parse(text string) (f Fields, fault string) {
	if fault := refuseForm(text); fault != "" {
		return Fields{}, fault
	}
	if !strings.HasPrefix(text, "@") {
		if fault := refuseField(strings.Fields(text)); fault != "" {
			return Fields{}, fault
		}
	}
	parsed, err := parser.Parse(text)
	if err != nil {
		return Fields{}, fmt.Sprintf("%q is not known; there are @hourly, @daily, @weekly, @monthly and @yearly", text)
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return Fields{}, "an interval is given as every_ms, not as @every"
	}
	return Fields{
		Seconds: spec.Second &^ star, Minutes: spec.Minute &^ star, Hours: uint32(spec.Hour &^ star),
		Days: uint32(spec.Dom &^ star), Months: uint32(spec.Month &^ star), Weekdays: uint32(spec.Dow &^ star),
		AnyDay: spec.Dom&star != 0, AnyWeekday: spec.Dow&star != 0,
	}, ""
}

// refuseForm refuses what the parser would take for more than a text of fields.
func refuseForm(text string) string {
	switch {
	case strings.TrimSpace(text) == "":
		return `must not be empty; "0 2 * * *" is every day at two o'clock`
	case strings.Contains(text, "TZ="):
		return "takes no time zone; give it as time_zone"
	case strings.HasPrefix(text, "@every"):
		return "an interval is given as every_ms, not as @every"
	}
	return ""
}

// refuseField names the first field that is wrong. The parser reads one field at a
// time here, with * in the places of the others, because its errors do not say
// which one they are about.
func refuseField(parts []string) string {
	if len(parts) != 5 && len(parts) != 6 {
		return fmt.Sprintf("must have 5 fields (minute, hour, day of the month, month, day of the week) or 6 with the second first; it has %d", len(parts))
	}
	first := len(fields) - len(parts)
	for i, part := range parts {
		alone := [...]string{"*", "*", "*", "*", "*", "*"}
		alone[first+i] = part
		_, err := parser.Parse(strings.Join(alone[:], " "))
		if err == nil && !strings.Contains(part, "*-") && !strings.Contains(part, "?-") && strings.Trim(part, ",") == part && !strings.Contains(part, ",,") {
			continue
		}
		field := fields[first+i]
		return fmt.Sprintf("the %s is %q; it takes %s, as *, a-b, a,b and */n", field.name, part, field.takes)
	}
	return ""
}
